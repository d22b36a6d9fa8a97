import type { IJobDocument, IJobRank, IJobVerdict, IJobVerdicts } from '../api';

/** A rank with what the table shows beside its own fields. */
export interface IRankRow {
  readonly rank: IJobRank;
  /** The last step that it logged; null if it logged none. */
  readonly step: number | null;
  /** Its coordinates, such as `pp=1 dp=0`. */
  readonly role: string;
  readonly verdicts: readonly IJobVerdict[];
}

/** Columns by which the table can be sorted. */
export const RANK_COLUMNS = [
  'rank',
  'state',
  'verdict',
  'role',
  'process',
  'gpu',
  'numa',
  'nic',
  'node',
  'switch',
  'step'
] as const;
export type RankColumn = (typeof RANK_COLUMNS)[number];

/**
 * Symbols of the states; the word stands beside them. `seen`: the rank was recorded or reported, and no end or
 * failure is known (it may no longer run); `missing`: never seen.
 */
export const STATE_SHAPES: Readonly<Record<IJobRank['state'], string>> = {
  seen: '●',
  ended: '○',
  failed: '✗',
  missing: '◌'
};
const STATE_ORDER = ['failed', 'missing', 'seen', 'ended'];

/** Return a row per rank. */
export function rankRows(job: IJobDocument, verdicts: IJobVerdicts | null): readonly IRankRow[] {
  const of = new Map<number, IJobVerdict[]>();
  for (const verdict of verdicts?.verdicts ?? []) {
    for (const rank of verdict.ranks) {
      of.set(rank, [...(of.get(rank) ?? []), verdict]);
    }
  }
  return job.ranks.map(rank => ({
    rank,
    step: job.steps[rank.rank] ?? null,
    role: Object.entries(rank.role)
      .map(([axis, place]) => `${axis}=${place}`)
      .join(' '),
    verdicts: of.get(rank.rank) ?? []
  }));
}

/** Return the rows in the order of a column; rows of equal value stay in the order of ranks, unknown ones are last. */
export function sortedRows(
  rows: readonly IRankRow[],
  column: RankColumn,
  descending: boolean
): readonly IRankRow[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [first, second] = [keyOf(a, column), keyOf(b, column)];
    if (first === null || second === null) {
      return Number(first === null) - Number(second === null) || a.rank.rank - b.rank.rank;
    }
    return sign * compare(first, second) || a.rank.rank - b.rank.rank;
  });
}

function compare(a: number | string, b: number | string): number {
  return typeof a === 'number' && typeof b === 'number'
    ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
}

function keyOf({ rank, step, role, verdicts }: IRankRow, column: RankColumn): number | string | null {
  switch (column) {
    case 'rank':
      return rank.rank;
    case 'state':
      return STATE_ORDER.indexOf(rank.state);
    case 'role':
      return role || null;
    case 'process':
      return rank.pid;
    case 'gpu':
      return rank.gpus[0] ?? null;
    case 'numa':
      return rank.numa;
    case 'nic':
    case 'node':
    case 'switch':
      return rank[column] || null;
    case 'step':
      return step;
    case 'verdict':
      return verdicts.length > 0 ? -Math.max(...verdicts.map(each => each.severity)) : null;
  }
}
