import type { PartialJSONObject } from '@lumino/coreutils';

/** The part of plotly.js that figures need; the extension offers it to widgets. */
export interface IPlotly {
  react(
    node: HTMLElement,
    data: readonly PartialJSONObject[],
    layout?: PartialJSONObject,
    config?: PartialJSONObject
  ): Promise<unknown>;
  addFrames(node: HTMLElement, frames: readonly PartialJSONObject[]): Promise<unknown>;
  purge(node: HTMLElement): void;
  readonly Plots: { resize(node: HTMLElement): Promise<unknown> };
}

/** Loads the page's plotly.js: the panel from a separate chunk, a widget from the panel. */
export type PlotlyLoader = () => Promise<IPlotly>;

/** A node with a plot of plotly.js. */
export interface IPlotlyNode extends HTMLElement {
  on(event: 'plotly_relayout', listener: (change: Readonly<Record<string, unknown>>) => void): void;
  on(event: 'plotly_click', listener: (click: IPlotlyClick) => void): void;
}

/** A click on a plot as plotly.js reports it: the cell of a heat map, or the point of a line. */
export interface IPlotlyClick {
  readonly points: readonly {
    readonly pointNumber?: number | readonly number[];
    readonly data?: { readonly name?: string };
  }[];
  readonly event?: Pick<MouseEvent, 'ctrlKey' | 'shiftKey' | 'metaKey'>;
}

/** Callbacks for clicks; `add` is true with Ctrl, Shift or Cmd. */
export interface IClickListener {
  /** A row of the heat map. */
  onRow?(row: number, add: boolean): void;
  /** A line with this name. */
  onLine?(name: string, add: boolean): void;
}

/** Report a click to its listener. */
export function reportClick(click: IPlotlyClick, listener: IClickListener): void {
  const [point] = click.points;
  const place = point?.pointNumber;
  const add = [click.event?.ctrlKey, click.event?.shiftKey, click.event?.metaKey].includes(true);
  if (typeof place === 'object') {
    listener.onRow?.(place[0] ?? 0, add);
  } else if (point?.data?.name !== undefined) {
    listener.onLine?.(point.data.name, add);
  }
}

/** The drag of a pointer on a plot. */
export class Drag {
  constructor(private readonly _node: HTMLElement) {
    _node.addEventListener('mousedown', this._begin, true);
  }

  /** Resolves when no drag is under way and plotly.js has handled its end. */
  get ended(): Promise<void> {
    return this._ended;
  }

  dispose(): void {
    this._node.removeEventListener('mousedown', this._begin, true);
    this._release?.();
  }

  private readonly _begin = (): void => {
    this._release?.();
    this._ended = new Promise(resolve => {
      const ends = ['mouseup', 'blur'] as const;
      const release = (): void => {
        ends.forEach(end => {
          window.removeEventListener(end, release, true);
        });
        // plotly.js handles the same event first.
        window.setTimeout(resolve);
      };
      this._release = release;
      ends.forEach(end => {
        window.addEventListener(end, release, true);
      });
    });
  };

  private _ended: Promise<void> = Promise.resolve();
  private _release: (() => void) | null = null;
}
