import type { ITrace } from './traces';

/** Width of a column in pixels, where a line has more points than the plot has pixels. */
const COLUMN_PIXELS = 2;
const BAND_OPACITY = 0.22;

type Values = (number | null)[];

/** A line as it is drawn, and the trace of the band from the least to the greatest value around it. */
export interface IBandedLine {
  /** Properties of the line that differ from the trace. */
  readonly line: { readonly x: number[]; readonly y: Values; readonly legendgroup?: string };
  readonly band: ITrace | null;
}

/** The values of one column of pixels, or one point that is itself a mean. */
interface IColumn {
  readonly x: number;
  readonly y: number;
  readonly low: number;
  readonly high: number;
}

/**
 * Return a line with at most a point per column of pixels, and the band of the values that each point stands for;
 * null if the line can be drawn as it is.
 *
 * @param range The time axis, UTC in milliseconds.
 * @param pixels The width of the time axis.
 */
export function bandedLine(
  trace: ITrace,
  range: readonly [number, number],
  pixels: number
): IBandedLine | null {
  const { x, y } = trace;
  if (!x || !y || trace.type === 'heatmap' || pixels <= 0) {
    return null;
  }
  const [from, to] = range;
  const shown = x.filter(time => time >= from && time <= to).length;
  const dense = shown > pixels;
  if (!dense && !trace.low) {
    return null;
  }
  const columnMs = dense ? ((to - from) / pixels) * COLUMN_PIXELS : 0;
  const segments = segmentsOf(trace, x, y, columnMs);
  const line = {
    x: segments.flatMap((columns, place) => [
      ...(place > 0 ? [columns[0]?.x ?? 0] : []),
      ...columns.map(each => each.x)
    ]),
    y: segments.flatMap((columns, place) => [...(place > 0 ? [null] : []), ...columns.map(each => each.y)])
  };
  return segments.some(columns => columns.some(each => each.high > each.low))
    ? { line: { ...line, legendgroup: legendGroup(trace) }, band: bandOf(trace, segments) }
    : { line, band: null };
}

/** Return the columns between gaps: where samples are missing, neither line nor band is drawn. */
function segmentsOf(trace: ITrace, x: readonly number[], y: Readonly<Values>, columnMs: number): IColumn[][] {
  const segments: IColumn[][] = [];
  let columns: IColumn[] = [];
  let first = 0;
  const flush = (end: number): void => {
    if (end > first) {
      columns.push(columnOf(trace, x, y, first, end));
    }
    first = end;
  };
  x.forEach((time, place) => {
    const value = y[place];
    if (typeof value !== 'number') {
      flush(place);
      first = place + 1;
      if (columns.length > 0) {
        segments.push(columns);
        columns = [];
      }
    } else if (place > first && (columnMs === 0 || cell(time, columnMs) !== cell(x[first] ?? 0, columnMs))) {
      flush(place);
    }
  });
  flush(x.length);
  return columns.length > 0 ? [...segments, columns] : segments;
}

/** Columns begin at multiples of their width, so that they do not flicker while the axis moves. */
function cell(time: number, columnMs: number): number {
  return Math.floor(time / columnMs);
}

function columnOf(
  trace: ITrace,
  x: readonly number[],
  y: Readonly<Values>,
  first: number,
  end: number
): IColumn {
  const values = y.slice(first, end).map(Number);
  const bound = (given: Values | undefined, least: (...all: number[]) => number): number =>
    least(...values.map((value, place) => given?.[first + place] ?? value));
  return {
    x: ((x[first] ?? 0) + (x[end - 1] ?? 0)) / 2,
    y: values.reduce((sum, value) => sum + value, 0) / values.length,
    low: bound(trace.low, Math.min),
    high: bound(trace.high, Math.max)
  };
}

function bandOf(trace: ITrace, segments: readonly (readonly IColumn[])[]): ITrace {
  const { color } = (trace.line ?? {}) as { color?: string };
  const x: (number | null)[] = [];
  const y: Values = [];
  for (const columns of segments) {
    const back = [...columns].reverse();
    x.push(...columns.map(each => each.x), ...back.map(each => each.x), null);
    y.push(...columns.map(each => each.high), ...back.map(each => each.low), null);
  }
  return {
    type: 'scatter',
    mode: 'lines',
    uid: `${trace.uid}_band`,
    x: x as number[],
    y,
    xaxis: trace.xaxis ?? 'x',
    yaxis: trace.yaxis ?? 'y',
    fill: 'toself',
    fillcolor: color ?? 'grey',
    opacity: BAND_OPACITY,
    line: { width: 0 },
    hoverinfo: 'skip',
    showlegend: false,
    // Hidden together with its line.
    legendgroup: legendGroup(trace)
  };
}

/** Return the group of a line and its band in the legend. */
function legendGroup(trace: ITrace): string {
  return typeof trace.legendgroup === 'string' ? trace.legendgroup : trace.uid;
}
