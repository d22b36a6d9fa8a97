import type { PartialJSONObject } from '@lumino/coreutils';

import type { ICells, IFigure, IPoints, ISamplesMessage } from '../../api';

/** Samples since the last message. */
export type SampleUpdate = Pick<ISamplesMessage, 'traces' | 'cells'>;

/** New points by the `uid` of their trace. */
export type Traces = NonNullable<ISamplesMessage['traces']>;

/** Figures by name: `job`, `host`, `heat`, `gpu/<uuid>`. */
export type Figures = Readonly<Record<string, IFigure>>;

/** The parts of a Plotly trace that are extended here. */
export interface ITrace extends PartialJSONObject {
  uid: string;
  type?: string;
  name?: string;
  /** Points of a line. */
  x?: number[];
  y?: (number | null)[];
  /** Not Plotly's: the least and the greatest of the values whose mean a point of a line is. */
  low?: (number | null)[];
  high?: (number | null)[];
  /** Heat map: time of the middle of the first column, duration of a column, values by row and column. */
  x0?: number;
  dx?: number;
  z?: (number | null)[][];
  /** Not Plotly's: the number of values in each cell of the newest column. */
  counts?: number[];
}

/** A line has a gap if the distance of two points is this multiple of the usual distance. */
const GAP = 3.5;

/** Return new points; if samples are missing before them, after an empty point, so that no line crosses the gap. */
function withGap(before: readonly number[], added: IPoints, uid: string): IPoints {
  const [last, first] = [before[before.length - 1], added.x[0]];
  const pauses = before.slice(-6).flatMap((x, place, all) => (place > 0 ? [x - (all[place - 1] ?? x)] : []));
  const usual = pauses.sort((a, b) => a - b)[Math.floor(pauses.length / 2)];
  // Users' metrics may be logged at any interval.
  const own = uid.startsWith('metrics/');
  if (own || last === undefined || first === undefined || !usual || first - last <= GAP * usual) {
    return added;
  }
  const { x, y, low = [], high = [] } = added;
  const hole = (values: readonly number[]): number[] => (values.length > 0 ? [NaN, ...values] : []);
  return { x: [last + usual, ...x], y: [null, ...y], low: hole(low), high: hole(high) };
}

/** Append points to the lines with these uids; return true if there were any that the lines do not have yet. */
export function extendLines(lines: ReadonlyMap<string, ITrace>, points: Traces): boolean {
  let changed = false;
  for (const [uid, sent] of Object.entries(points)) {
    const line = lines.get(uid);
    const added = line?.x && newer(sent, line.x[line.x.length - 1] ?? -Infinity);
    if (line?.x && line.y && added && added.x.length > 0) {
      const { x, y, low, high } = withGap(line.x, added, uid);
      line.x.push(...x);
      line.y.push(...y);
      if (line.low && line.high) {
        line.low.push(...(low?.length ? low : y));
        line.high.push(...(high?.length ? high : y));
      }
      changed = true;
    }
  }
  return changed;
}

/** Return the points after a time: the drawn figure may already have those before it. */
function newer(points: IPoints, lastMs: number): IPoints {
  const from = points.x.findIndex(x => x > lastMs);
  if (from === 0) {
    return points;
  }
  const part = (values: readonly number[] | undefined): number[] =>
    from < 0 ? [] : (values ?? []).slice(from);
  return {
    x: part(points.x),
    y: from < 0 ? [] : points.y.slice(from),
    low: part(points.low),
    high: part(points.high)
  };
}

/** Add values to the columns of the heat map; return true if a new column was started. */
export function extendHeat(heat: ITrace, cells: ICells, windowMs: number): boolean {
  const { z, x0, dx } = heat;
  if (!z || x0 === undefined || !dx) {
    return false;
  }
  const width = (): number => z[0]?.length ?? 0;
  const before = width();
  cells.row.forEach((row, place) => {
    const cell = z[row];
    const column = Math.round(((cells.x[place] ?? 0) - x0) / dx);
    // Values for older columns are left out: the next figure that the server sends in full has them.
    if (cell && column >= width() - 1) {
      if (column >= width()) {
        widen(heat, z, column);
      }
      const counts = (heat.counts ??= z.map(each => (each[column] === null ? 0 : 1)));
      const count = counts[row] ?? 0;
      cell[column] = ((cell[column] ?? 0) * count + (cells.y[place] ?? 0)) / (count + 1);
      counts[row] = count + 1;
    }
  });
  // A column is drawn when it is complete, which is when the next one starts.
  const begun = width() > before;
  const old = width() - Math.ceil(windowMs / dx) - 1;
  if (old > 0) {
    for (const row of z) {
      row.splice(0, old);
    }
    heat.x0 = x0 + old * dx;
  }
  return begun;
}

function widen(heat: ITrace, z: (number | null)[][], column: number): void {
  for (const row of z) {
    row.push(...Array.from({ length: column + 1 - row.length }, () => null));
  }
  heat.counts = z.map(() => 0);
}

/** Return the newest time of all traces; -Infinity without any. */
export function newestOf(traces: readonly ITrace[]): number {
  return Math.max(
    -Infinity,
    ...traces.map(trace => {
      if (trace.z && trace.x0 !== undefined && trace.dx) {
        return trace.x0 + ((trace.z[0]?.length ?? 0) - 0.5) * trace.dx;
      }
      return trace.x?.[trace.x.length - 1] ?? -Infinity;
    })
  );
}
