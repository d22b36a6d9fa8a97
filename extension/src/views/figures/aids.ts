import { bandedLine } from './bands';
import { attachCursor, axisOf, TimeCursor, type ITimeCursor } from './cursor';
import type { IFigureAids } from './figure';
import type { FigureView, ITimeSpan } from './plot';
import { ValuesTable } from './values-table';

/** Fractions of the shown time span by which a key moves its start and its end. */
const MOVES: Readonly<Record<string, readonly [number, number]>> = {
  '+': [0.25, -0.25],
  '=': [0.25, -0.25],
  '-': [-0.5, 0.5],
  ArrowLeft: [-0.25, -0.25],
  ArrowRight: [0.25, 0.25]
};
const SHORTEST_MS = 5_000;

/**
 * Zoom and move a figure's time axis by keys until the returned function is called: `+` and `-`, the arrow keys, and
 * `0` or Escape for the moving window or the whole run.
 *
 * @param zoom Called with the new time span; null for the moving window or the whole run.
 */
export function attachKeys(
  node: HTMLElement,
  offsetMs: () => number,
  zoom: (span: ITimeSpan | null) => void
): () => void {
  node.tabIndex = 0;
  node.setAttribute('aria-keyshortcuts', '+ - ArrowLeft ArrowRight 0');
  // Some of these keys are shortcuts of JupyterLab, such as 0 0 for a restart of the kernel.
  node.dataset.lmSuppressShortcuts = 'true';
  const onKey = (event: KeyboardEvent): void => {
    const move = MOVES[event.key];
    const axis = axisOf(node, offsetMs());
    if (
      event.ctrlKey ||
      event.altKey ||
      event.metaKey ||
      (!move && event.key !== '0' && event.key !== 'Escape')
    ) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (!move) {
      zoom(null);
    } else if (axis !== null && (move[0] <= 0 || move[1] >= 0 || axis.lengthMs > 2 * SHORTEST_MS)) {
      const sinceMs = axis.fromMs + move[0] * axis.lengthMs;
      zoom({ sinceMs, untilMs: axis.fromMs + (1 + move[1]) * axis.lengthMs });
    }
  };
  node.addEventListener('keydown', onKey);
  return () => {
    node.removeEventListener('keydown', onKey);
  };
}

/** Aids for reading figures: a cursor shared by all figures of a page or cell, keys, bands and tables. */
export class FigureAids implements IFigureAids {
  constructor(private readonly _cursor: ITimeCursor = new TimeCursor()) {}

  readonly bandedLine = bandedLine;

  readonly Table = ValuesTable;

  attach(node: HTMLElement, view: FigureView, zoom: (span: ITimeSpan | null) => void): () => void {
    const offsetMs = (): number => view.utcOffsetMs;
    const detach = [attachCursor(node, this._cursor, offsetMs), attachKeys(node, offsetMs, zoom)];
    return () => {
      detach.forEach(each => {
        each();
      });
    };
  }
}
