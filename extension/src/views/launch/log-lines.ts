import type { ILogPage } from '../../api';

const MOST_LINES = 2_000;

/** Rank, text, milliseconds since 1970 or null, true for a line about an error. */
export type LogLine = ILogPage['lines'][number];

/** The end of a log. `dropped` is the number of earlier lines that are no longer here. */
export interface ILogLines {
  readonly dropped: number;
  readonly lines: readonly LogLine[];
}

/** A line with its number in the log, which stays the same while earlier lines are dropped. */
export interface INumberedLine {
  readonly number: number;
  readonly line: LogLine;
}

export const NO_LINES: ILogLines = { dropped: 0, lines: [] };

/** Return the log with new lines at its end, and without the oldest lines of a long log. */
export function appendLines(log: ILogLines, added: readonly LogLine[]): ILogLines {
  const lines = [...log.lines, ...added];
  const excess = Math.max(0, lines.length - MOST_LINES);
  return { dropped: log.dropped + excess, lines: lines.slice(excess) };
}

/** Return the lines of a rank, or of all for null; only those about errors if asked for. */
export function filterLines(log: ILogLines, rank: number | null, errors: boolean): readonly INumberedLine[] {
  return log.lines
    .map((line, index) => ({ number: log.dropped + index, line }))
    .filter(({ line }) => (rank === null || line[0] === rank) && (!errors || line[3]));
}
