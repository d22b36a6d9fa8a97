import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobFiles, IJobStorage } from '../api';
import { errorMessage } from '../common/error-message';
import { Table } from '../common/table';
import { ViewPoll } from '../common/view-poll';
import { sizeText } from '../communication/matrix';
import { Figure } from '../views/figures/figure';
import type { JobFigures } from './figures';
import type { JobModel } from './model';

/** The recorder writes a line every ten seconds. */
const POLL_MS = 20_000;

interface IProps {
  readonly model: JobModel;
  readonly figures: JobFigures;
  readonly trans: TranslationBundle;
}

/** What the job read and wrote, how its file systems answered, and advice on its files. */
export function Storage(props: IProps): React.JSX.Element | null {
  const { model, figures, trans } = props;
  const [found, error] = useStorage(model);
  if (found === null) {
    return error === '' ? null : <p className="jp-Gipfel-pad jp-Gipfel-small">✗ {error}</p>;
  }
  if (!found.recorded) {
    return null;
  }
  return (
    <section className="jp-Gipfel-view jp-Gipfel-job-cluster" aria-label={trans.__('Files and file systems')}>
      <div className="jp-Gipfel-viewHead">
        <h3>{trans.__('Files and file systems')}</h3>
      </div>
      {found.advice.map(each => (
        <p key={each}>▲ {each}</p>
      ))}
      {model.figure('storage') !== null && (
        <Figure
          source={figures}
          name="storage"
          label={trans.__('Answers of file systems, opened files, bytes read and written')}
          trans={trans}
        />
      )}
      {found.files.length > 0 && <Files rows={found.files} trans={trans} />}
      {found.left_out > 0 && <p>{trans.__('%1 more: gipfel io lists them.', found.left_out)}</p>}
      {found.notes.map(each => (
        <p key={each} className="jp-Gipfel-small">
          {each}
        </p>
      ))}
    </section>
  );
}

/** Poll what is recorded of the job's files while the job runs. */
function useStorage(model: JobModel): [IJobStorage | null, string] {
  const [found, setFound] = React.useState<IJobStorage | null>(null);
  const [error, setError] = React.useState('');
  const { run } = model.selection;
  React.useEffect(() => {
    const poll = new ViewPoll('job-storage', async () => {
      try {
        const next = await model.requests.storage(run);
        if (!poll.isDisposed) {
          setFound(next);
          setError('');
        }
        return next.live ? POLL_MS : null;
      } catch (reason) {
        if (!poll.isDisposed) {
          setError(errorMessage(reason));
        }
        return POLL_MS;
      }
    });
    poll.setVisible(true);
    return () => {
      poll.dispose();
    };
  }, [model, run]);
  return [found, error];
}

function Files(props: { rows: readonly IJobFiles[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Directory'),
    trans.__('Class'),
    trans.__('Tier'),
    trans.__('Access'),
    trans.__('Files seen'),
    trans.__('Size'),
    trans.__('Node')
  ];
  return (
    <Table heads={heads}>
      {rows.map(each => (
        <tr key={`${each.node} ${each.directory} ${each.files_class}`}>
          <th scope="row" className="jp-Gipfel-job-path">
            {each.directory}
          </th>
          <td>{each.files_class}</td>
          <td>{`${each.tier} (${each.filesystem})`}</td>
          <td>{each.written ? trans.__('%1, written', each.pattern) : each.pattern}</td>
          <td>{each.files}</td>
          <td>{sizeText(each.bytes)}</td>
          <td>{each.node}</td>
        </tr>
      ))}
    </Table>
  );
}
