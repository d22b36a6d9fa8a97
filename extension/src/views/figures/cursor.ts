import { axisOf } from './time-axis';

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
