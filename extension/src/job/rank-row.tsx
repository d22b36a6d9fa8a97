import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobSelection, JobUnit } from '../tokens';
import { STATE_SHAPES, type IRankRow } from './rank-rows';
import { verdictShape } from './verdicts';

/** Height of a row. */
export const ROW_PIXELS = 28;
const GPU_CHARACTERS = 12;

interface IProps {
  readonly row: IRankRow;
  /** The number of the row in the whole table. */
  readonly place: number;
  readonly selected: boolean;
  readonly selection: IJobSelection;
  readonly logOpen: boolean;
  readonly onLog: (rank: number) => void;
  readonly trans: TranslationBundle;
}

/** One rank of the table; a click selects it everywhere, one on a node, NIC or switch all ranks there. */
export const RankRow = React.memo(function RankRow(props: IProps): React.JSX.Element {
  const { row, place, selected, selection, logOpen, onLog, trans } = props;
  const { rank } = row;
  const unit = (kind: JobUnit, name: string): React.JSX.Element => (
    <td>{name && <Choice selection={selection} unit={kind} name={name} />}</td>
  );
  return (
    <tr aria-rowindex={place} aria-selected={selected} data-rank={rank.rank} style={{ height: ROW_PIXELS }}>
      <th scope="row">
        <Choice selection={selection} unit="rank" name={String(rank.rank)} selected={selected} />
      </th>
      <td title={rank.failure}>
        <span aria-hidden="true">{STATE_SHAPES[rank.state]}</span> {stateText(rank.state, trans)}
      </td>
      <td title={row.verdicts.map(each => `${each.title}. ${each.evidence}`).join('\n')}>
        {rank.failure !== '' && row.verdicts.length === 0 && `✗ ${rank.failure}`}
        {row.verdicts.map(each => `${verdictShape(each)} ${each.kind.replace(/_/g, ' ')}`).join(', ')}
      </td>
      <td>{row.role}</td>
      <td>{[rank.process, rank.pid ?? ''].join(' ').trim()}</td>
      <td title={rank.gpus.join(' ')}>{rank.gpus.map(uuid => uuid.slice(-GPU_CHARACTERS)).join(', ')}</td>
      <td>{rank.numa}</td>
      {unit('nic', rank.nic)}
      {unit('node', rank.node)}
      {unit('switch', rank.switch)}
      <td>{row.step}</td>
      <td>
        {rank.log && (
          <button
            className="jp-Gipfel-button jp-mod-small"
            aria-pressed={logOpen}
            aria-label={trans.__('Log of rank %1', rank.rank)}
            onClick={() => {
              onLog(rank.rank);
            }}
          >
            {trans.__('Log')}
          </button>
        )}
      </td>
    </tr>
  );
});

/** A name that selects what it names. */
function Choice(props: {
  selection: IJobSelection;
  unit: JobUnit;
  name: string;
  selected?: boolean;
}): React.JSX.Element {
  const { selection, unit, name, selected } = props;
  return (
    <button
      className="jp-Gipfel-link"
      onClick={event => {
        selection.choose(unit, [name], event.ctrlKey || event.metaKey || event.shiftKey);
      }}
    >
      {selected && <span aria-hidden="true">■ </span>}
      {name}
    </button>
  );
}

function stateText(state: IRankRow['rank']['state'], trans: TranslationBundle): string {
  return {
    seen: trans.__('seen'),
    ended: trans.__('ended'),
    failed: trans.__('failed'),
    missing: trans.__('missing')
  }[state];
}
