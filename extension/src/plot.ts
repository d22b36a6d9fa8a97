import type { PartialJSONObject } from '@lumino/coreutils';

import type { IFigure, IPlotly, IPlotlyNode, Traces } from './tokens';

let loading: Promise<IPlotly> | null = null;

/** The page's one plotly.js, fetched when the first figure needs it. */
export function loadPlotly(): Promise<IPlotly> {
  loading ??= import('plotly.js-dist-min').then(
    module => module.default,
    (reason: unknown) => {
      // A failed download must not be remembered as the answer.
      loading = null;
      throw reason;
    }
  );
  return loading;
}

/** Let widgets in cells draw with the same plotly.js instead of bringing their own. */
export function offerPlotly(): void {
  Object.defineProperty(globalThis, Symbol.for('gipfel.plotly'), { value: loadPlotly, configurable: true });
}

/** A line of a figure, as far as it is extended here. */
interface ITrace extends PartialJSONObject {
  uid: string;
  x: number[];
  y: (number | null)[];
}

/** A few points across the whole width would look like more than they are. */
const SHORTEST_SPAN_MS = 60_000;

const CONFIG = {
  displaylogo: false,
  // Back to the moving window rather than to where it was when the figure was drawn.
  doubleClick: 'autosize',
  modeBarButtons: [['toImage', 'autoScale2d']]
};

/** A figure in a node: drawn once, then extended point by point, each step after the one before it. */
export class FigureView {
  constructor(private readonly node: HTMLElement) {
    this._observer = new ResizeObserver(() => {
      void this._enqueue(plotly => this._fit(plotly));
    });
    this._observer.observe(node);
  }

  /** Draw the figure; a zoomed time axis stays, and lines that were hidden stay hidden. */
  async draw(figure: IFigure): Promise<void> {
    const plotly = await loadPlotly();
    this._plotly = plotly;
    await this._enqueue(async () => {
      const first = this._layout === null;
      // plotly.js writes into what it is given.
      const { data, layout, config } = structuredClone(figure);
      this._traces = data as ITrace[];
      this._byUid = new Map(this._traces.map(trace => [trace.uid, trace]));
      for (const trace of this._traces) {
        // plotly.js makes a CSS selector of it when the trace goes, and throws where it is none.
        trace.uid = trace.uid.replace(/[^\w-]/g, '_');
      }
      this._layout = themed(layout, this.node);
      this._config = { ...CONFIG, ...config };
      this._setRange();
      await this._react(plotly);
      if (first) {
        this._followZoom();
      }
      await this._fit(plotly);
    });
  }

  /** Append points to the traces that have these uids, and move the time axis on. */
  extend(points: Traces): Promise<void> {
    return this._enqueue(async plotly => {
      for (const [uid, added] of Object.entries(points)) {
        this._byUid.get(uid)?.x.push(...added.x);
        this._byUid.get(uid)?.y.push(...added.y);
      }
      const first = this._newest() - this._windowMs();
      for (const trace of this._traces) {
        const old = trace.x.findIndex(x => x >= first);
        trace.x.splice(0, Math.max(0, old));
        trace.y.splice(0, Math.max(0, old));
      }
      this._setRange();
      await this._react(plotly);
    });
  }

  /** Give back what plotly.js holds for the node. */
  dispose(): void {
    this._disposed = true;
    this._observer.disconnect();
    this._plotly?.purge(this.node);
  }

  private async _react(plotly: IPlotly): Promise<void> {
    // The arrays are the same objects as before; only this says that they changed.
    this._layout = { ...this._layout, datarevision: ++this._revision };
    await plotly.react(this.node, this._traces, this._layout, this._config);
  }

  /** Where the user zoomed to, else the window, or the part of it that has been recorded so far. */
  private _setRange(): void {
    const newest = this._newest();
    if (newest === -Infinity) {
      return;
    }
    const oldest = Math.min(...this._traces.map(trace => trace.x[0] ?? Infinity));
    const from = Math.min(newest - SHORTEST_SPAN_MS, Math.max(newest - this._windowMs(), oldest));
    const range = this._zoom ?? [from, newest];
    for (const [key, axis] of Object.entries(this._layout ?? {})) {
      if (/^xaxis\d*$/.test(key)) {
        Object.assign(axis as object, { range: [...range], autorange: false });
      }
    }
  }

  private _newest(): number {
    return Math.max(...this._traces.map(trace => trace.x[trace.x.length - 1] ?? -Infinity));
  }

  private _windowMs(): number {
    const meta = this._layout?.meta as { window_s?: number } | undefined;
    return 1000 * (meta?.window_s ?? 600);
  }

  private _followZoom(): void {
    (this.node as IPlotlyNode).on('plotly_relayout', event => {
      const [from, to] = ['0', '1'].map(
        end =>
          Object.entries(event).find(([key]) => new RegExp(`^xaxis\\d*\\.range\\[${end}\\]$`).test(key))?.[1]
      );
      if (from !== undefined && to !== undefined) {
        this._zoom = [from, to];
      } else if (Object.keys(event).some(key => /^xaxis\d*\.autorange$/.test(key))) {
        this._zoom = null;
      }
    });
  }

  private async _fit(plotly: IPlotly): Promise<void> {
    if (this.node.clientWidth > 0 && this._layout) {
      await plotly.Plots.resize(this.node);
    }
  }

  private _enqueue(step: (plotly: IPlotly) => Promise<void>): Promise<void> {
    const run = async (): Promise<void> => {
      if (this._plotly && !this._disposed) {
        await step(this._plotly);
      }
    };
    const next = this._last.then(run);
    // One step that failed must not keep the later ones from running.
    this._last = next.catch(() => undefined);
    return next;
  }

  private readonly _observer: ResizeObserver;
  private _plotly: IPlotly | null = null;
  private _traces: ITrace[] = [];
  private _byUid = new Map<string, ITrace>();
  private _layout: PartialJSONObject | null = null;
  private _config: PartialJSONObject = CONFIG;
  private _zoom: [unknown, unknown] | null = null;
  private _revision = 0;
  private _last: Promise<void> = Promise.resolve();
  private _disposed = false;
}

/** The layout with background, text and lines of the page's theme. */
function themed(layout: PartialJSONObject, node: HTMLElement): PartialJSONObject {
  const style = getComputedStyle(node);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const result: PartialJSONObject = {
    ...layout,
    autosize: true,
    // The figure's own top margin has room for two lines of legend; plotly.js would reserve it a second time.
    margin: { ...(layout.margin as PartialJSONObject | undefined), autoexpand: false },
    hoverlabel: {
      bgcolor: colour('--jp-layout-color1'),
      bordercolor: colour('--jp-border-color1'),
      font: { color: colour('--jp-ui-font-color1') }
    },
    modebar: {
      bgcolor: 'rgba(0,0,0,0)',
      color: colour('--jp-ui-font-color2'),
      activecolor: colour('--jp-brand-color1')
    },
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: {
      ...(layout.font as PartialJSONObject | undefined),
      color: colour('--jp-ui-font-color1'),
      family: colour('--jp-ui-font-family')
    }
  };
  delete result.width;
  for (const [key, value] of Object.entries(layout)) {
    if (/^[xy]axis\d*$/.test(key)) {
      result[key] = {
        ...(value as PartialJSONObject),
        gridcolor: colour('--jp-border-color2'),
        linecolor: colour('--jp-border-color1'),
        zerolinecolor: colour('--jp-border-color2')
      };
    }
  }
  return result;
}
