import { parseUtcMs } from '../../common/clock';

/** The time under the pointer, in all figures that share it. */
export interface ITimeCursor {
  /** UTC in milliseconds; null while the pointer is elsewhere. */
  readonly timeMs: number | null;
  set(timeMs: number | null): void;
  /** Report each move until the returned function is called. */
  follow(moved: () => void): () => void;
}

/** Draw the cursor over a figure's node, and move it with the pointer, until the returned function is called. */
export function attachCursor(node: HTMLElement, cursor: ITimeCursor, offsetMs: () => number): () => void {
  const line = document.createElement('div');
  line.className = 'jp-Gipfel-cursor';
  line.hidden = true;
  node.parentElement?.append(line);
  const onMove = (event: MouseEvent): void => {
    const axis = axisOf(node, offsetMs());
    const place = event.clientX - node.getBoundingClientRect().left;
    const share = axis === null ? -1 : (place - axis.left) / axis.width;
    cursor.set(axis !== null && share >= 0 && share <= 1 ? axis.fromMs + share * axis.lengthMs : null);
  };
  const onLeave = (): void => {
    cursor.set(null);
  };
  const draw = (): void => {
    const axis = cursor.timeMs === null ? null : axisOf(node, offsetMs());
    const share = axis === null ? -1 : ((cursor.timeMs ?? 0) - axis.fromMs) / axis.lengthMs;
    line.hidden = axis === null || share < 0 || share > 1;
    if (axis !== null) {
      line.style.transform = `translateX(${node.offsetLeft + axis.left + share * axis.width}px)`;
    }
  };
  node.addEventListener('mousemove', onMove);
  node.addEventListener('mouseleave', onLeave);
  const unfollow = cursor.follow(draw);
  return () => {
    unfollow();
    node.removeEventListener('mousemove', onMove);
    node.removeEventListener('mouseleave', onLeave);
    line.remove();
  };
}

/** A cursor for the figures of one view. */
export class TimeCursor implements ITimeCursor {
  get timeMs(): number | null {
    return this._timeMs;
  }

  set(timeMs: number | null): void {
    if (timeMs !== this._timeMs) {
      this._timeMs = timeMs;
      this._followers.forEach(moved => {
        moved();
      });
    }
  }

  follow(moved: () => void): () => void {
    this._followers.add(moved);
    return () => {
      this._followers.delete(moved);
    };
  }

  private readonly _followers = new Set<() => void>();
  private _timeMs: number | null = null;
}

/** The drawn time axis of a figure, as plotly.js keeps it on its node. */
interface IDrawn extends HTMLElement {
  readonly layout?: {
    readonly margin?: { readonly l?: number; readonly r?: number };
    readonly xaxis?: { readonly range?: readonly (number | string)[]; readonly type?: string };
  };
}

/** Position of a figure's time axis, in pixels from the left side of the figure, and its range. */
export interface IAxisPlace {
  readonly left: number;
  readonly width: number;
  readonly fromMs: number;
  readonly lengthMs: number;
}

/** Return the time axis that was drawn; null before that. */
export function axisOf(node: IDrawn, offsetMs: number): IAxisPlace | null {
  const { margin, xaxis } = node.layout ?? {};
  const [from, to] = (xaxis?.range ?? []).map(end => parseUtcMs(end, offsetMs));
  const left = margin?.l ?? 0;
  const width = node.clientWidth - left - (margin?.r ?? 0);
  return from === undefined || to === undefined || !(to > from) || width <= 0
    ? null
    : { left, width, fromMs: from, lengthMs: to - from };
}
