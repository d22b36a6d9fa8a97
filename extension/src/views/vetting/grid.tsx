import * as React from 'react';

import type { IFaultyComponent, IVettingGrid, IGridRow, CellVerdict } from '../../api';
import { inLocalTime } from '../../common/clock';
import type { ITranslation } from '../translation';

/** Symbols of the verdicts, so that colour is not the only cue. */
export const SHAPES: Readonly<Record<CellVerdict, string>> = {
  pass: '✓',
  degraded: '~',
  inconclusive: '?',
  not_run: '–',
  not_applicable: 'n/a',
  fail: '✗',
  running: '◐',
  waiting: '·'
};

/** Return a verdict as translated text. */
export function verdictText(verdict: CellVerdict, trans: ITranslation): string {
  return {
    pass: trans.__('pass'),
    degraded: trans.__('degraded'),
    inconclusive: trans.__('inconclusive'),
    not_run: trans.__('not run'),
    not_applicable: trans.__('not applicable'),
    fail: trans.__('fail'),
    running: trans.__('running'),
    waiting: trans.__('waiting')
  }[verdict];
}

interface ICellPosition {
  readonly row: number;
  readonly column: number;
}

/** Nodes and checks, with the reason of the hovered, focused or clicked cell below. Arrow keys move between cells. */
export function Grid(props: { grid: IVettingGrid; trans: ITranslation }): React.JSX.Element {
  const { grid, trans } = props;
  const [hovered, setHovered] = React.useState<ICellPosition | null>(null);
  const [chosen, setChosen] = React.useState<ICellPosition | null>(null);
  const table = React.useRef<HTMLTableElement>(null);
  const shown = hovered ?? chosen;
  // Only one cell is a tab stop; arrow keys reach the others.
  const stop = chosen ?? { row: 0, column: 0 };
  const move = (event: React.KeyboardEvent): void => {
    const [down, right] = STEPS[event.key] ?? [0, 0];
    if (down !== 0 || right !== 0) {
      event.preventDefault();
      // In a notebook's cell, arrow keys would select another cell.
      event.stopPropagation();
      const row = clamp(stop.row + down, grid.rows.length);
      const column = clamp(stop.column + right, grid.checks.length);
      table.current?.querySelector<HTMLElement>(`[data-place="${row}-${column}"]`)?.focus();
    }
  };
  return (
    <>
      <div className="jp-Gipfel-vetting-scroll">
        <table ref={table} role="grid" aria-label={trans.__('Nodes and checks')} onKeyDown={move}>
          <Head checks={grid.checks} trans={trans} />
          <tbody
            onMouseLeave={() => {
              setHovered(null);
            }}
          >
            {grid.rows.map((row, number) => (
              <Row
                key={row.node}
                row={row}
                number={number}
                checks={grid.checks}
                stop={stop}
                trans={trans}
                onHover={setHovered}
                onChoose={setChosen}
              />
            ))}
          </tbody>
        </table>
      </div>
      <Reason grid={grid} place={shown} trans={trans} />
    </>
  );
}

function Head(props: { checks: readonly string[]; trans: ITranslation }): React.JSX.Element {
  return (
    <thead>
      <tr>
        <th scope="col">{props.trans.__('node')}</th>
        {props.checks.map(check => (
          <th key={check} scope="col">
            <span>{check}</span>
          </th>
        ))}
      </tr>
    </thead>
  );
}

const STEPS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1]
};

function clamp(value: number, count: number): number {
  return Math.max(0, Math.min(count - 1, value));
}

function Row(props: {
  row: IGridRow;
  number: number;
  checks: readonly string[];
  stop: ICellPosition;
  trans: ITranslation;
  onHover: (place: ICellPosition) => void;
  onChoose: (place: ICellPosition) => void;
}): React.JSX.Element {
  const { row, number, checks, stop, trans } = props;
  return (
    <tr data-node={row.node} data-verdict={row.verdict}>
      <th scope="row" title={row.running ? trans.__('%1: %2 is running', row.node, row.running) : row.node}>
        {row.node}
      </th>
      {row.cells.map((cell, column) => {
        const place = { row: number, column };
        const words = `${row.node}, ${checks[column] ?? ''}: ${verdictText(cell.verdict, trans)}. ${inLocalTime(cell.reason)}`;
        return (
          <td
            key={column}
            data-verdict={cell.verdict}
            data-place={`${number}-${column}`}
            tabIndex={stop.row === number && stop.column === column ? 0 : -1}
            aria-label={words}
            onMouseEnter={() => {
              props.onHover(place);
            }}
            onFocus={() => {
              props.onChoose(place);
            }}
            onClick={event => {
              event.currentTarget.focus();
            }}
          >
            {SHAPES[cell.verdict]}
          </td>
        );
      })}
    </tr>
  );
}

function Reason(props: {
  grid: IVettingGrid;
  place: ICellPosition | null;
  trans: ITranslation;
}): React.JSX.Element {
  const { grid, place, trans } = props;
  const row = place ? grid.rows[place.row] : undefined;
  const cell = place && row ? row.cells[place.column] : undefined;
  if (!place || !row || !cell) {
    return (
      <p className="jp-Gipfel-vetting-reason">
        {trans.__('Point at a cell, or move to it with the arrow keys, to read its reason.')}
      </p>
    );
  }
  return (
    <p className="jp-Gipfel-vetting-reason" data-verdict={cell.verdict}>
      <span aria-hidden="true">{SHAPES[cell.verdict]}</span> {row.node} · {grid.checks[place.column]}:{' '}
      <strong>{verdictText(cell.verdict, trans)}.</strong> {inLocalTime(cell.reason)}
    </p>
  );
}

/** Faulty components, with check, verdict, reason and fix. */
export function FaultyComponents(props: {
  components: readonly IFaultyComponent[];
  more: number;
  trans: ITranslation;
}): React.JSX.Element {
  const { components, more, trans } = props;
  return (
    <>
      <ul className="jp-Gipfel-vetting-faulty-components">
        {components.map(each => (
          <li key={each.who + each.checks + each.reason} data-verdict={each.verdict}>
            <span className="jp-Gipfel-vetting-mark">
              <span aria-hidden="true">{SHAPES[each.verdict]}</span> {each.who}
            </span>{' '}
            · {each.checks}: {verdictText(each.verdict, trans)}
            {each.owner && each.owner !== 'node' ? ` (${each.owner})` : ''}. {each.reason} {each.fix}
          </li>
        ))}
      </ul>
      {more > 0 && <p>{trans.__('and %1 more reasons in the report', more)}</p>}
    </>
  );
}
