import type { PartialJSONObject } from '@lumino/coreutils';

import { newestOf, type ITrace } from './traces';

const RECENT_MS = 60_000;

/** What a line or a row of a heat map was in the last minute that is drawn. */
export interface IRecentValues {
  readonly name: string;
  readonly unit: string;
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Return the values of the last minute of each line and row that has any: a figure as a table. */
export function recentValues(traces: readonly ITrace[], layout: PartialJSONObject): IRecentValues[] {
  const from = newestOf(traces) - RECENT_MS;
  return traces.flatMap(trace => (trace.z ? rowsOf(trace, layout, from) : lineOf(trace, from)));
}

function lineOf(trace: ITrace, from: number): IRecentValues[] {
  const { x = [], y = [], low, high } = trace;
  const recent = x.flatMap((time, place) => (time >= from ? [place] : []));
  const known = (values: readonly (number | null)[]): number[] =>
    recent
      .map(place => values[place])
      .filter(value => typeof value === 'number' && Number.isFinite(value)) as number[];
  const name = typeof trace.name === 'string' ? trace.name : trace.uid;
  return summaryOf(name, unitOf(trace), known(y), known(low ?? y), known(high ?? y));
}

function rowsOf(trace: ITrace, layout: PartialJSONObject, from: number): IRecentValues[] {
  const { z = [], x0 = 0, dx = 1 } = trace;
  const first = Math.max(0, Math.ceil((from - x0) / dx));
  const { names = [] } = (layout.meta ?? {}) as { names?: string[] };
  return z.flatMap((row, place) => {
    const known = row.slice(first).filter(value => value !== null);
    return summaryOf(names[place] ?? String(place), unitOf(trace), known, known, known);
  });
}

function summaryOf(
  name: string,
  unit: string,
  values: readonly number[],
  low: readonly number[],
  high: readonly number[]
): IRecentValues[] {
  if (values.length === 0) {
    return [];
  }
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return [{ name, unit, mean, low: Math.min(...values, ...low), high: Math.max(...values, ...high) }];
}

/** Return the unit that a trace's hover text has after the value. */
function unitOf(trace: ITrace): string {
  const text = typeof trace.hovertemplate === 'string' ? trace.hovertemplate : '';
  return /%\{[yz][^}]*\} ?([^<]*)/.exec(text)?.[1]?.trim() ?? '';
}
