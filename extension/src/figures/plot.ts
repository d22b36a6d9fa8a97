import type { PartialJSONObject } from '@lumino/coreutils';

import type { IFigure } from '../api';
import { aheadMs, readersLayout, readersTimes, utcOf, wallText } from '../common/clock';
import type { News } from './news';
import { loadPlotly, type IPlotly, type IPlotlyNode } from './plotly';
import { themed } from './theme';
import { extendHeat, extendLines, newestOf, type ITrace } from './traces';

/** A few points across the whole width would look like more than they are. */
const SHORTEST_SPAN_MS = 60_000;
/** Texts of times that are remembered; a window of a few minutes needs a thousand. */
const MOST_TEXTS = 20_000;

const CONFIG = {
  displaylogo: false,
  // Back to the moving window rather than to where it was when the figure was drawn.
  doubleClick: 'autosize',
  modeBarButtons: [['zoom2d', 'pan2d', 'autoScale2d', 'toImage']]
};

/** A stretch of time that is set off, UTC in milliseconds. */
export interface ISpan {
  readonly sinceMs: number;
  readonly untilMs: number;
}

/** What a figure tells about the person in front of it. */
export interface IFigureListener {
  /** The time axis was zoomed or moved; null asks for the moving window again. */
  onZoom?(span: ISpan | null): void;
  /** A row of the heat map was chosen. */
  onRow?(row: number): void;
}

/** A figure in a node: given once, then extended; drawn when its owner says so. */
export class FigureView {
  constructor(
    private readonly node: HTMLElement,
    private readonly listener: IFigureListener = {}
  ) {
    this._observer = new ResizeObserver(() => {
      void this._fit();
    });
    this._observer.observe(node);
    node.addEventListener('mousedown', this._hold, true);
  }

  /** Take a figure in; it is drawn with the next `draw`. */
  set(figure: IFigure): void {
    // plotly.js writes into what it is given.
    const { data, layout, config } = structuredClone(figure);
    this._traces = data as ITrace[];
    this._byUid = new Map(this._traces.map(trace => [trace.uid, trace]));
    for (const trace of this._traces) {
      // plotly.js makes a CSS selector of it when the trace goes, and throws where it is none.
      trace.uid = trace.uid.replace(/[^\w-]/g, '_');
    }
    // plotly.js keeps what it is given, and notes in it which lines were hidden.
    this._drawn = this._traces.map(trace => ({ ...trace }));
    this._given = layout;
    this._config = { ...CONFIG, ...config };
    this._moves = false;
  }

  /** Add what came in to the traces of these uids; whether there was anything for this figure. */
  extend(news: News): boolean {
    if (!this._given) {
      return false;
    }
    let changed = news.traces ? extendLines(this._byUid, news.traces) : false;
    const heat = this._traces.find(trace => trace.type === 'heatmap');
    if (heat && news.cells) {
      changed = extendHeat(heat, news.cells, this._windowMs()) || changed;
    }
    this._moves ||= changed;
    return changed;
  }

  /** Set off a stretch of time, or none. */
  mark(span: ISpan | null): void {
    this._span = span;
  }

  /** Draw what there is, once nobody drags across it: a frame that is being pulled counts in the axis of its start. */
  async draw(): Promise<void> {
    const plotly = await loadPlotly();
    await this._held;
    if (this._disposed || !this._given) {
      return;
    }
    const first = this._plotly === null;
    this._plotly = plotly;
    const own = themed(this._given, this.node);
    this._setRange(own);
    this._setMark(own);
    const layout = this._onReadersClock(own);
    // The arrays are the same objects as before; only this says that they changed.
    layout.datarevision = ++this._revision;
    await plotly.react(this.node, this._drawn, layout, this._config);
    if (first) {
      this._listen();
    }
  }

  /** Give back what plotly.js holds for the node. */
  dispose(): void {
    this._disposed = true;
    this._observer.disconnect();
    this.node.removeEventListener('mousedown', this._hold, true);
    this._release?.();
    this._plotly?.purge(this.node);
  }

  /** Once it moves, the axis ends at the newest point; before that it is as the server drew it. */
  private _setRange(layout: PartialJSONObject): void {
    const newest = newestOf(this._traces);
    if (!this._moves || newest === -Infinity) {
      return;
    }
    const from = newest - Math.max(SHORTEST_SPAN_MS, this._windowMs());
    const oldest = Math.min(...this._traces.map(trace => trace.x?.[0] ?? trace.x0 ?? Infinity));
    const range = [Math.max(from, Math.min(oldest, newest - SHORTEST_SPAN_MS)), newest];
    for (const trace of this._traces) {
      const old = trace.x?.findIndex(x => x >= from) ?? 0;
      trace.x?.splice(0, Math.max(0, old));
      trace.y?.splice(0, Math.max(0, old));
    }
    for (const [key, axis] of Object.entries(layout)) {
      if (/^xaxis\d*$/.test(key)) {
        Object.assign(axis as object, { range: [...range], autorange: false });
      }
    }
  }

  /** What plotly.js is given: times as text of the reader's clock, one for the whole figure. */
  private _onReadersClock(layout: PartialJSONObject): PartialJSONObject {
    const [, end] = (layout.xaxis as { range?: number[] } | undefined)?.range ?? [];
    const ahead = aheadMs(end ?? Date.now());
    if (ahead !== this._aheadMs || this._texts.size > MOST_TEXTS) {
      this._texts.clear();
      this._aheadMs = ahead;
    }
    this._traces.forEach((trace, place) => {
      Object.assign(this._drawn[place] ?? {}, trace, readersTimes(trace, layout, ahead, this._text));
    });
    return readersLayout(layout, ahead);
  }

  /** Lines of one figure have their times in common, and most of them were drawn before. */
  private readonly _text = (timeMs: number, ahead: number): string => {
    let text = this._texts.get(timeMs);
    if (text === undefined) {
      text = wallText(timeMs, ahead);
      this._texts.set(timeMs, text);
    }
    return text;
  };

  private _setMark(layout: PartialJSONObject): void {
    if (!this._span) {
      return;
    }
    const colour = getComputedStyle(this.node).getPropertyValue('--jp-brand-color1').trim();
    const shape = {
      type: 'rect',
      x0: this._span.sinceMs,
      x1: this._span.untilMs,
      y0: 0,
      y1: 1,
      line: { width: 1, dash: 'dash', color: colour },
      fillcolor: colour,
      opacity: 0.16,
      layer: 'below'
    };
    // One in each plot: between them are titles and legends.
    const plots = Object.keys(layout).flatMap(key => /^yaxis(\d*)$/.exec(key)?.[1] ?? []);
    const marks = plots.map(number => ({ ...shape, xref: `x${number}`, yref: `y${number} domain` }));
    layout.shapes = [...((layout.shapes as PartialJSONObject[] | undefined) ?? []), ...marks];
  }

  private _windowMs(): number {
    const meta = this._given?.meta as { window_s?: number } | undefined;
    if (meta?.window_s) {
      return 1000 * meta.window_s;
    }
    const [from, to] = (this._given?.xaxis as { range?: number[] } | undefined)?.range ?? [];
    return from !== undefined && to !== undefined ? to - from : 600_000;
  }

  private _listen(): void {
    const node = this.node as IPlotlyNode;
    node.on('plotly_relayout', event => {
      const [from, to] = ['0', '1'].map(
        end =>
          Object.entries(event).find(([key]) => new RegExp(`^xaxis\\d*\\.range\\[${end}\\]$`).test(key))?.[1]
      );
      if (from !== undefined && to !== undefined) {
        this.listener.onZoom?.({ sinceMs: utcOf(from, this._aheadMs), untilMs: utcOf(to, this._aheadMs) });
      } else if (Object.keys(event).some(key => /^xaxis\d*\.autorange$/.test(key))) {
        this.listener.onZoom?.(null);
      }
    });
    node.on('plotly_click', click => {
      const row = click.points[0]?.pointNumber?.[0];
      if (row !== undefined) {
        this.listener.onRow?.(row);
      }
    });
  }

  private readonly _hold = (): void => {
    this._release?.();
    this._held = new Promise(resolve => {
      const ends = ['mouseup', 'blur'] as const;
      const release = (): void => {
        ends.forEach(end => {
          window.removeEventListener(end, release, true);
        });
        // plotly.js takes its part of the same event first.
        window.setTimeout(resolve);
      };
      this._release = release;
      ends.forEach(end => {
        window.addEventListener(end, release, true);
      });
    });
  };

  private async _fit(): Promise<void> {
    if (this._plotly && !this._disposed && this.node.clientWidth > 0) {
      await this._plotly.Plots.resize(this.node);
    }
  }

  private readonly _observer: ResizeObserver;
  private _plotly: IPlotly | null = null;
  private _traces: ITrace[] = [];
  private _drawn: ITrace[] = [];
  private readonly _texts = new Map<number, string>();
  private _aheadMs = 0;
  private _byUid = new Map<string, ITrace>();
  private _given: PartialJSONObject | null = null;
  private _config: PartialJSONObject = CONFIG;
  private _span: ISpan | null = null;
  private _moves = false;
  private _revision = 0;
  private _disposed = false;
  private _held: Promise<void> = Promise.resolve();
  private _release: (() => void) | null = null;
}
