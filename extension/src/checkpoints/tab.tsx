import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobCheckpoint, IJobCheckpoints, IJobDip } from '../api';
import { formatLocalTime } from '../common/clock';
import { Notice } from '../common/notice';
import { Table } from '../common/table';
import { sizeText } from '../communication/matrix';
import { GivenFigure } from '../figures/given';
import type { IDocumentTab } from '../job/document-tab';
import { Figure } from '../views/figures/figure';

/** Symbols of verdicts: a cross if a run can't resume from the checkpoint, a ring if its bytes were not compared. */
const SHAPES: Readonly<Record<string, string>> = {
  verified: '✓',
  whole: '✓',
  unhashed: '○',
  writing: '◐',
  torn: '✗',
  damaged: '✗'
};

/** Return the tab "Checkpoints" of the job page, which the panel shows too. */
export function checkpointsTab(trans: TranslationBundle): IDocumentTab<IJobCheckpoints> {
  return {
    id: 'checkpoints',
    title: trans.__('Checkpoints'),
    rank: 39,
    reading: trans.__('Reading checkpoints…'),
    themed: true,
    Content: ({ value }) => <Content trans={trans} value={value} />
  };
}

function Content(props: { trans: TranslationBundle; value: IJobCheckpoints }): React.JSX.Element {
  const { trans, value } = props;
  // One figure per view: panel and job page each draw it into their own node.
  const [figure] = React.useState(() => new GivenFigure());
  React.useEffect(() => {
    figure.set(value.figure);
  }, [figure, value]);
  if (value.checkpoints.length === 0 && value.dips.length === 0) {
    return (
      <Notice shape="○" text={trans.__('No launch of this run has written a checkpoint.')}>
        <p>
          {trans.__(
            'Give a launch a directory for checkpoints, and use gipfel_widgets.Checkpoints in its training.'
          )}
        </p>
      </Notice>
    );
  }
  const [first, ...others] = value.lines;
  return (
    <>
      {value.warnings.map(each => (
        <Notice key={each} shape="▲" text={each} />
      ))}
      {first !== undefined && <h3>{first}</h3>}
      {others.map(each => (
        <p key={each}>{each}</p>
      ))}
      {value.figure !== null && (
        <Figure source={figure} name="checkpoints" label={trans.__('Throughput and writes')} trans={trans} />
      )}
      {value.checkpoints.length > 0 && <List rows={value.checkpoints} trans={trans} />}
      {value.dips.length > 0 && <Dips rows={value.dips} trans={trans} />}
      {value.quota !== '' && (
        <>
          <h3>{trans.__('Storage')}</h3>
          <pre>{value.quota}</pre>
        </>
      )}
      {value.notes.map(each => (
        <p key={each} className="jp-Gipfel-small">
          {each}
        </p>
      ))}
    </>
  );
}

function List(props: { rows: readonly IJobCheckpoint[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Checkpoint'),
    trans.__('State'),
    trans.__('Size'),
    trans.__('Stood still'),
    trans.__('Write'),
    trans.__('Written'),
    trans.__('Ranks')
  ];
  const old = rows.filter(each => each.deletable);
  return (
    <>
      <Table heads={heads}>
        {rows.map(each => (
          <tr key={`${each.directory}/${each.name}`}>
            <th scope="row">{each.name}</th>
            <td title={each.note}>
              {SHAPES[each.state] ?? '○'} {each.state}
              {each.note !== '' && `: ${each.note}`}
              {each.deletable && ` · ${trans.__('may be deleted')}`}
            </td>
            <td>{sizeText(each.bytes)}</td>
            <td>{seconds(each.stall_s)}</td>
            <td>{seconds(each.write_s)}</td>
            <td>{each.time_ms === null ? '–' : formatLocalTime(each.time_ms)}</td>
            <td>{each.world_size ?? '–'}</td>
          </tr>
        ))}
      </Table>
      <p className="jp-Gipfel-small">
        {old.length > 0 &&
          trans._n(
            '1 may be deleted: %2. ',
            '%1 may be deleted: %2. ',
            old.length,
            sizeText(old.reduce((sum, each) => sum + each.bytes, 0))
          )}
        {trans.__('gipfel checkpoints RUN --verify reads every byte.')}
      </p>
    </>
  );
}

function Dips(props: { rows: readonly IJobDip[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Step'),
    trans.__('Cost'),
    trans.__('Throughput'),
    trans.__('Stood still'),
    trans.__('Written')
  ];
  return (
    <Table heads={heads}>
      {[...rows].reverse().map(each => (
        <tr key={each.end_ms}>
          <th scope="row">{each.step}</th>
          <td>{seconds(each.seconds)}</td>
          <td>{`${each.lower_percent > 0 ? '−' : '+'}${Math.abs(each.lower_percent).toFixed(1)} %`}</td>
          <td>{seconds(each.stall_s)}</td>
          <td>{formatLocalTime(each.end_ms)}</td>
        </tr>
      ))}
    </Table>
  );
}

function seconds(value: number | null): string {
  return value === null ? '–' : `${value.toFixed(2)} s`;
}
