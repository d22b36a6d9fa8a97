import type { PartialJSONObject } from '@lumino/coreutils';

import type { IFigure } from '../../api';
import { utcOffsetMs, localTimeLayout, localTimes, parseUtcMs, localTimeText } from '../../common/clock';
import type { bandedLine, IBandedLine } from './bands';
import {
  Drag,
  reportClick,
  type IClickListener,
  type IPlotly,
  type IPlotlyNode,
  type PlotlyLoader
} from './plotly';
import { fitLegends, isDark, markSpan, themed, withRange } from './theme';
import { extendHeat, extendLines, newestOf, type ITrace, type SampleUpdate } from './traces';

/** Shortest time axis: a few points should not fill the whole width. */
const SHORTEST_SPAN_MS = 60_000;
/** Size of the cache of time texts; a window of a few minutes needs a thousand. */
const MOST_TEXTS = 20_000;

const CONFIG = {
  displaylogo: false,
  // A double click returns to the moving window, not to the range at the first draw.
  doubleClick: 'autosize',
  modeBarButtons: [['zoom2d', 'pan2d', 'autoScale2d', 'toImage']]
};

/** A time span, UTC in milliseconds. */
export interface ITimeSpan {
  readonly sinceMs: number;
  readonly untilMs: number;
}

/** Callbacks for what the user does with a figure. */
export interface IFigureListener extends IClickListener {
  /** The user zoomed or moved the time axis; null returns to the moving window. */
  onZoom?(span: ITimeSpan | null): void;
}

/** How a figure is drawn. */
export interface IFigureOptions {
  /**
   * True if no server redraws the figure for a zoom: it keeps the user's zoom while it grows, and its axis has the
   * length of the recording, but at most the length of the window.
   */
  readonly standalone?: boolean;
  /** True to stretch the figure to the height of its node, if the node is higher. */
  readonly fill?: boolean;
  /** Colours of lines on a dark page by metric; those of the figure are for a light one. */
  readonly darkColours?: Readonly<Record<string, string>>;
  /** Returns a line with more points than pixels as a line and a band; without it, every point is drawn. */
  readonly banded?: typeof bandedLine;
}

/** The lines, heat maps and layout of a figure, with times in UTC. */
export interface IFigureContent {
  readonly traces: readonly ITrace[];
  readonly layout: PartialJSONObject;
}

/** A figure in a node: set once, then extended; drawn by a call of `draw`. */
export class FigureView {
  constructor(
    private readonly node: HTMLElement,
    private readonly loadPlotly: PlotlyLoader,
    private readonly listener: IFigureListener = {},
    private readonly options: IFigureOptions = {}
  ) {
    this._observer = new ResizeObserver(() => {
      void this._fit();
    });
    this._observer.observe(node);
    this._drag = new Drag(node);
  }

  /** The offset from UTC of the times on the axis that was drawn. */
  get utcOffsetMs(): number {
    return this._utcOffsetMs;
  }

  /** Set the figure; the next `draw` draws it. */
  set(figure: IFigure): void {
    // plotly.js modifies its input.
    const { data, layout, config } = structuredClone(figure);
    this._traces = data as ITrace[];
    this._byUid = new Map(this._traces.map(trace => [trace.uid, trace]));
    this._metrics = this._traces.map(trace => trace.uid.slice(trace.uid.lastIndexOf('/') + 1));
    for (const trace of this._traces) {
      // plotly.js uses it in a CSS selector when the trace is removed, and throws if that is invalid.
      trace.uid = trace.uid.replace(/[^\w-]/g, '_');
    }
    // plotly.js keeps these objects, and records in them which lines are hidden.
    this._drawn = this._traces.map(trace => ({ ...trace }));
    this._given = layout;
    this._config = { ...CONFIG, ...config };
    this._moves = this.options.standalone === true;
    this._zoom = this._moves ? this._zoom : null;
  }

  /** Append new samples to the traces with these uids; return true if this figure has any of them. */
  extend(news: SampleUpdate): boolean {
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

  /** Highlight a time span; null for none. */
  mark(span: ITimeSpan | null): void {
    this._span = span;
  }

  /** Zoom to a time span, as the user does with the mouse; null for the moving window. The next `draw` shows it. */
  zoom(span: ITimeSpan | null): void {
    this._zoom = span && [span.sinceMs, span.untilMs].map(end => localTimeText(end, this._utcOffsetMs));
    this.listener.onZoom?.(span);
  }

  /** The drawn content, for a table of values. */
  get content(): IFigureContent {
    return { traces: this._traces, layout: this._given ?? {} };
  }

  /** Draw the figure, after the end of a drag: a drag selects on the axis that was drawn when it began. */
  async draw(): Promise<void> {
    const plotly = await this.loadPlotly();
    await this._drag.ended;
    if (this._disposed || !this._given) {
      return;
    }
    const first = this._plotly === null;
    this._plotly = plotly;
    const own = themed(this._given, this.node);
    this._legendShifts = fitLegends(own, this._traces, this.node.clientWidth);
    if (this.options.fill) {
      own.height = Math.max(Number(own.height), this.node.clientHeight);
    }
    this._setRange(own);
    if (this._span) {
      markSpan(own, this._span, this.node);
    }
    const local = this._onReadersClock(own);
    const layout = this._zoom ? withRange(local, this._zoom) : local;
    // The arrays are the same objects as before; the revision tells plotly.js that they changed.
    layout.datarevision = ++this._revision;
    await plotly.react(this.node, [...this._drawn, ...this._bands], layout, this._config);
    if (first) {
      this._listen();
    }
  }

  /** Release the resources of plotly.js for the node. */
  dispose(): void {
    this._disposed = true;
    this._observer.disconnect();
    this._drag.dispose();
    this._plotly?.purge(this.node);
  }

  /** Let the axis end at the newest point once points were added; before that keep the range of the server. */
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
      [trace.y, trace.low, trace.high].forEach(values => values?.splice(0, Math.max(0, old)));
    }
    for (const [key, axis] of Object.entries(layout)) {
      if (/^xaxis\d*$/.test(key)) {
        Object.assign(axis as object, { range: [...range], autorange: false });
      }
    }
  }

  /** Return the layout with times as text in the browser's time zone, with one UTC offset for the whole figure. */
  private _onReadersClock(layout: PartialJSONObject): PartialJSONObject {
    const [, end] = (layout.xaxis as { range?: number[] } | undefined)?.range ?? [];
    const offsetMs = utcOffsetMs(end ?? Date.now());
    if (offsetMs !== this._utcOffsetMs || this._texts.size > MOST_TEXTS) {
      this._texts.clear();
      this._utcOffsetMs = offsetMs;
    }
    const colours = this.options.darkColours;
    const dark = colours && isDark(this.node) ? colours : {};
    const band = this._bandOf(layout);
    this._bands = [];
    this._traces.forEach((trace, place) => {
      const color = dark[this._metrics[place] ?? ''];
      const line = color ? { line: { ...(trace.line as PartialJSONObject), color } } : {};
      const banded = band({ ...trace, ...line });
      const shown = { ...trace, ...banded?.line };
      Object.assign(this._drawn[place] ?? {}, shown, localTimes(shown, layout, offsetMs, this._text), line);
      if (banded?.band) {
        this._bands.push({
          ...banded.band,
          ...localTimes(banded.band, layout, offsetMs, this._text)
        } as ITrace);
      }
    });
    return localTimeLayout(layout, offsetMs);
  }

  /** Return the function that computes a line and its band for the time axis that will be shown. */
  private _bandOf(layout: PartialJSONObject): (trace: ITrace) => IBandedLine | null {
    const { banded } = this.options;
    const { range, type } = (layout.xaxis ?? {}) as { range?: number[]; type?: string };
    const [from, to] = this._zoom?.map(time => parseUtcMs(time, this._utcOffsetMs)) ?? range ?? [];
    if (!banded || type !== 'date' || from === undefined || to === undefined) {
      return () => null;
    }
    const { l = 0, r = 0 } = (layout.margin ?? {}) as { l?: number; r?: number };
    return trace => banded(trace, [from, to], this.node.clientWidth - l - r);
  }

  /** Return the text of a time from a cache: lines of a figure share their times, and most were drawn before. */
  private readonly _text = (timeMs: number, offsetMs: number): string => {
    let text = this._texts.get(timeMs);
    if (text === undefined) {
      text = localTimeText(timeMs, offsetMs);
      this._texts.set(timeMs, text);
    }
    return text;
  };

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
        const [sinceMs, untilMs] = [from, to].map(end => parseUtcMs(end, this._utcOffsetMs));
        this.zoom({ sinceMs: sinceMs ?? 0, untilMs: untilMs ?? 0 });
      } else if (Object.keys(event).some(key => /^xaxis\d*\.autorange$/.test(key))) {
        this.zoom(null);
      }
    });
    node.on('plotly_click', click => {
      reportClick(click, this.listener);
    });
  }

  private async _fit(): Promise<void> {
    if (!this._plotly || !this._given || this._disposed || this.node.clientWidth <= 0) {
      return;
    }
    const legendShifts = fitLegends({ ...this._given }, this._traces, this.node.clientWidth);
    if (this.options.fill || legendShifts !== this._legendShifts) {
      await this.draw();
    }
    if (!this.options.fill) {
      await this._plotly.Plots.resize(this.node);
    }
  }

  private readonly _observer: ResizeObserver;
  private readonly _drag: Drag;
  private _plotly: IPlotly | null = null;
  private _traces: ITrace[] = [];
  private _drawn: ITrace[] = [];
  private _bands: ITrace[] = [];
  private readonly _texts = new Map<number, string>();
  private _utcOffsetMs = 0;
  private _byUid = new Map<string, ITrace>();
  private _given: PartialJSONObject | null = null;
  private _config: PartialJSONObject = CONFIG;
  private _span: ITimeSpan | null = null;
  private _metrics: readonly string[] = [];
  private _zoom: readonly string[] | null = null;
  private _moves = false;
  private _legendShifts = '';
  private _revision = 0;
  private _disposed = false;
}
