import type { PartialJSONObject } from '@lumino/coreutils';
import * as React from 'react';

import type { ITranslation } from '../translation';
import type { IFigureContent } from './plot';
import { newestOf, type ITrace } from './traces';

const REFRESH_MS = 5_000;

/** A figure as text: a table of the last minute's values, updated while it is open. */
export function ValuesTable(props: {
  /** Description of the figure. */
  label: string;
  /** Returns what is drawn; null until something has been drawn. */
  read: () => IFigureContent | null;
  trans: ITranslation;
}): React.JSX.Element {
  const { label, trans } = props;
  const [rows, setRows] = React.useState<readonly IRecentValues[] | null>(null);
  const read = React.useRef(props.read);
  React.useEffect(() => {
    read.current = props.read;
  });
  const open = rows !== null;
  React.useEffect(() => {
    if (!open) {
      return undefined;
    }
    const timer = window.setInterval(() => {
      setRows(recentValues(read.current()));
    }, REFRESH_MS);
    return () => {
      window.clearInterval(timer);
    };
  }, [open]);
  return (
    <details
      className="jp-Gipfel-more jp-Gipfel-values"
      onToggle={event => {
        setRows(event.currentTarget.open ? recentValues(read.current()) : null);
      }}
    >
      <summary aria-label={trans.__('Last minute as a table: %1', label)}>{trans.__('Table')}</summary>
      {open && <Rows rows={rows} caption={label} trans={trans} />}
    </details>
  );
}

function Rows(props: {
  rows: readonly IRecentValues[];
  caption: string;
  trans: ITranslation;
}): React.JSX.Element {
  const { rows, caption, trans } = props;
  if (rows.length === 0) {
    return <p className="jp-Gipfel-small">{trans.__('There are no values in the last minute.')}</p>;
  }
  return (
    <table className="jp-Gipfel-table">
      <caption className="jp-Gipfel-hidden">{caption}</caption>
      <thead>
        <tr>
          <th scope="col">{trans.__('last minute')}</th>
          <th scope="col">{trans.__('mean')}</th>
          <th scope="col">{trans.__('least')}</th>
          <th scope="col">{trans.__('greatest')}</th>
          <th scope="col">{trans.__('unit')}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row, place) => (
          <tr key={`${row.name} ${place}`}>
            <th scope="row">{row.name}</th>
            <td>{digits(row.mean)}</td>
            <td>{digits(row.low)}</td>
            <td>{digits(row.high)}</td>
            <td>{row.unit}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function digits(value: number): string {
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

const RECENT_MS = 60_000;

/** Values of a line, or of a row of a heat map, in the last minute that is drawn. */
export interface IRecentValues {
  readonly name: string;
  readonly unit: string;
  readonly mean: number;
  readonly low: number;
  readonly high: number;
}

/** Return the values of the last minute of each line and row that has any: a figure as a table. */
export function recentValues(content: IFigureContent | null): IRecentValues[] {
  const { traces, layout } = content ?? { traces: [], layout: {} };
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
