import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { LaunchesModel } from '../launches/model';
import { LaunchRequests } from '../launches/requests';
import { LaunchLog } from '../views/launch/log';
import { Looks } from './looks';
import type { JobModel } from './model';
import { WorldLine } from './overview';
import { RankRow, ROW_PIXELS } from './rank-row';
import { RANK_COLUMNS, rankRows, sortedRows, type IRankRow, type RankColumn } from './rank-rows';
import { States } from './states';
import { missingText } from './verdicts';
import { Help } from '../views/term';
import { RANK } from '../views/terms';

interface IProps {
  readonly model: JobModel;
  readonly trans: TranslationBundle;
}

/** Rows above and below the visible ones that are drawn too. */
const BESIDE = 8;
const FIRST_PIXELS = 600;

/** Every rank: where it runs, its role, its state, its log; missing ones are named. */
export function Ranks(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { job } = model;
  const [log, setLog] = React.useState<number | null>(null);
  React.useEffect(() => {
    model.setWanted(null);
  }, [model]);
  const missing = job === null ? '' : missingText(job, trans);
  return (
    <>
      <States model={model} trans={trans} />
      {job !== null && <WorldLine job={job} trans={trans} />}
      {missing && <p className="jp-Gipfel-pad">✗ {missing}</p>}
      {job !== null && <Looks key={job.launch} model={model} trans={trans} />}
      {job?.ranks.length === 0 && (
        <p className="jp-Gipfel-pad">
          {trans.__(
            'No rank has been seen. Start a launch, or call gipfel_widgets.roles(dp=…) on each rank.'
          )}
        </p>
      )}
      {job !== null && job.ranks.length > 0 && (
        <RankTable
          {...props}
          openLog={log}
          onLog={rank => {
            setLog(rank === log ? null : rank);
          }}
        />
      )}
      {job !== null && log !== null && job.launch !== '' && (
        <RankLog key={`${job.launch} ${log}`} {...props} launch={job.launch} rank={log} />
      )}
    </>
  );
}

interface ITableProps extends IProps {
  /** The rank whose log is shown; null for none. */
  readonly openLog: number | null;
  readonly onLog: (rank: number) => void;
}

function RankTable(props: ITableProps): React.JSX.Element {
  const { model, trans } = props;
  const { job, verdicts, selection } = model;
  const { view } = selection;
  const column = RANK_COLUMNS.find(each => each === view.sort) ?? 'rank';
  const sort = React.useMemo(() => ({ column, down: view.down }), [column, view.down]);
  const [only, setOnly] = React.useState(false);
  const chosen = React.useMemo(() => new Set(selection.ranks), [selection.ranks]);
  const rows = React.useMemo(
    () => (job === null ? [] : sortedRows(rankRows(job, verdicts), sort.column, sort.down)),
    [job, verdicts, sort]
  );
  const shown = only && selection.some ? rows.filter(each => chosen.has(each.rank.rank)) : rows;
  return (
    <>
      <label className="jp-Gipfel-pad jp-Gipfel-check">
        <input
          type="checkbox"
          checked={only}
          onChange={event => {
            setOnly(event.target.checked);
          }}
        />
        {trans.__('only what is selected')}
      </label>
      <Scroller
        {...props}
        rows={shown}
        chosen={chosen}
        head={
          <Head
            sort={sort}
            trans={trans}
            onSort={chosen => {
              const next = toggled(sort, chosen);
              selection.setView({ sort: next.column, down: next.down });
            }}
          />
        }
      />
    </>
  );
}

function toggled(sort: { column: RankColumn; down: boolean }, column: RankColumn): typeof sort {
  return { column, down: sort.column === column && !sort.down };
}

/** The table's rows of which only those in view are in the page: a job may have thousands. */
function Scroller(
  props: ITableProps & {
    readonly rows: readonly IRankRow[];
    readonly chosen: ReadonlySet<number>;
    readonly head: React.JSX.Element;
  }
): React.JSX.Element {
  const { rows, chosen, head, model, trans, openLog, onLog } = props;
  const [view, setView] = React.useState({ top: 0, pixels: FIRST_PIXELS });
  const first = Math.max(0, Math.floor(view.top / ROW_PIXELS) - BESIDE);
  const last = Math.min(rows.length, Math.ceil((view.top + view.pixels) / ROW_PIXELS) + BESIDE);
  const space = (count: number): React.JSX.Element | null =>
    count > 0 ? <tr aria-hidden="true" style={{ height: count * ROW_PIXELS }} /> : null;
  return (
    <div
      className="jp-Gipfel-job-ranks"
      tabIndex={0}
      role="region"
      aria-label={trans.__('Table of ranks')}
      onScroll={event => {
        const { scrollTop, clientHeight } = event.currentTarget;
        setView({ top: scrollTop, pixels: clientHeight });
      }}
    >
      <table aria-rowcount={rows.length + 1}>
        {head}
        <tbody>
          {space(first)}
          {rows.slice(first, last).map((row, place) => (
            <RankRow
              key={row.rank.rank}
              row={row}
              place={first + place + 2}
              selected={chosen.has(row.rank.rank)}
              selection={model.selection}
              logOpen={openLog === row.rank.rank}
              onLog={onLog}
              trans={trans}
            />
          ))}
          {space(rows.length - last)}
        </tbody>
      </table>
    </div>
  );
}

function Head(props: {
  sort: { column: RankColumn; down: boolean };
  trans: TranslationBundle;
  onSort: (column: RankColumn) => void;
}): React.JSX.Element {
  const { sort, trans, onSort } = props;
  const columns: readonly (readonly [RankColumn, string])[] = [
    ['rank', trans.__('Rank')],
    ['state', trans.__('State')],
    ['verdict', trans.__('Verdict')],
    ['role', trans.__('Role')],
    ['process', trans.__('Process')],
    ['gpu', trans.__('GPU')],
    ['numa', trans.__('NUMA')],
    ['nic', trans.__('NIC')],
    ['node', trans.__('Node')],
    ['switch', trans.__('Switch')],
    ['step', trans.__('Last step')]
  ];
  const sorted = sort.down ? 'descending' : 'ascending';
  return (
    <thead>
      <tr>
        {columns.map(([column, title]) => (
          <th key={column} scope="col" aria-sort={sort.column === column ? sorted : 'none'}>
            <button
              onClick={() => {
                onSort(column);
              }}
            >
              {title}
              <span aria-hidden="true">{sort.column === column ? (sort.down ? ' ▼' : ' ▲') : ''}</span>
            </button>
            {column === 'rank' && <Help term={RANK} trans={trans} />}
          </th>
        ))}
        <th scope="col">{trans.__('Log')}</th>
      </tr>
    </thead>
  );
}

/** The log of one rank of a launch, read as long as it is shown. */
function RankLog(props: IProps & { launch: string; rank: number }): React.JSX.Element {
  const { model, trans, launch, rank } = props;
  const [launches] = React.useState(
    () => new LaunchesModel(new LaunchRequests(model.requests.settings), launch)
  );
  React.useEffect(() => {
    launches.openLog(launch, rank);
    launches.setVisible(true);
    return () => {
      launches.setVisible(false);
    };
  }, [launches, launch, rank]);
  return (
    <section className="jp-Gipfel-pad jp-Gipfel-launches" aria-label={trans.__('Log of rank %1', rank)}>
      <h3>{trans.__('Log of rank %1', rank)}</h3>
      <UseSignal signal={launches.changed}>
        {(): React.JSX.Element => (
          <>
            {launches.error !== '' && <p role="alert">✗ {launches.error}</p>}
            <LaunchLog
              ranks={model.job?.world_size ?? rank + 1}
              log={{
                end: launches.log,
                rank: launches.rank,
                chooseRank: other => {
                  launches.openLog(launch, other);
                },
                flight: launches.flight
              }}
              trans={trans}
            />
          </>
        )}
      </UseSignal>
    </section>
  );
}
