import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IEarlierRun, IEarlierRuns } from '../api';
import { errorMessage } from '../common/error-message';
import { formatLocalTime } from '../common/clock';
import { Table } from '../common/table';
import type { JobModel } from './model';

interface IProps {
  readonly model: JobModel;
  readonly trans: TranslationBundle;
}

/** The steps of the run beside those of earlier runs of its script; another choice of runs changes the verdict. */
export function Earlier(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const [found, error] = useEarlier(model);
  if (found === null) {
    return (
      <p className="jp-Gipfel-pad jp-Gipfel-small" role="status">
        {error === '' ? `◐ ${trans.__('Comparing with earlier runs…')}` : `✗ ${error}`}
      </p>
    );
  }
  const percent = (share: number): string => `${share < 0 ? '−' : '+'}${Math.abs(100 * share).toFixed(1)} %`;
  return (
    <section aria-label={trans.__('Earlier runs')}>
      <p className="jp-Gipfel-pad" data-verdict={found.verdict}>
        {found.verdict === 'slower' ? '▲ ' : ''}
        {found.sentence}
        {found.least !== null &&
          found.most !== null &&
          ` ${trans.__('95 %: %1 to %2.', percent(found.least), percent(found.most))}`}
        {found.confidence > 0 && ` ${trans.__('Confidence %1.', found.confidence.toFixed(2))}`}
      </p>
      {found.runs.length > 0 && <Runs {...props} found={found} />}
    </section>
  );
}

/** Request the comparison when the run or the choice changes. */
function useEarlier(model: JobModel): [IEarlierRuns | null, string] {
  const [found, setFound] = React.useState<IEarlierRuns | null>(null);
  const [error, setError] = React.useState('');
  const { run, view } = model.selection;
  const beside = (view.beside ?? []).join(',');
  React.useEffect(() => {
    let current = true;
    model.requests.earlier(run, beside).then(
      next => {
        if (current) {
          setFound(next);
          setError('');
        }
      },
      (reason: unknown) => {
        if (current) {
          setError(errorMessage(reason));
        }
      }
    );
    return () => {
      current = false;
    };
  }, [model, run, beside]);
  return [found, error];
}

function Runs(props: IProps & { readonly found: IEarlierRuns }): React.JSX.Element {
  const { model, trans, found } = props;
  const heads = [trans.__('Run'), trans.__('Started'), trans.__('Step'), trans.__('Differs')];
  const chosen = found.runs.filter(each => each.chosen).map(each => each.name);
  const choose = (row: IEarlierRun): void => {
    const next = row.chosen ? chosen.filter(name => name !== row.name) : [...chosen, row.name];
    model.selection.setView({ beside: next.length > 0 ? next : null });
  };
  return (
    <>
      <Table heads={heads}>
        {found.runs.map(row => (
          <tr key={row.name}>
            <th scope="row">
              <label className="jp-Gipfel-check">
                <input
                  type="checkbox"
                  checked={row.chosen}
                  onChange={() => {
                    choose(row);
                  }}
                />
                {row.name}
              </label>
            </th>
            <td>{formatLocalTime(Date.parse(row.started))}</td>
            <td>{row.seconds === null ? '' : trans.__('%1 s', row.seconds.toPrecision(4))}</td>
            <td>{row.reason}</td>
          </tr>
        ))}
      </Table>
      {!found.automatic && (
        <button
          className="jp-Gipfel-button"
          onClick={() => {
            model.selection.setView({ beside: null });
          }}
        >
          {trans.__('Choose by script, size and image')}
        </button>
      )}
    </>
  );
}
