import type { PartialJSONObject } from '@lumino/coreutils';

/** The part of plotly.js that is used here, and that widgets may rely on. */
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

/** A node that plotly.js has drawn into. */
export interface IPlotlyNode extends HTMLElement {
  on(event: 'plotly_relayout', listener: (change: Readonly<Record<string, unknown>>) => void): void;
  on(event: 'plotly_click', listener: (click: { points: { pointNumber?: number[] }[] }) => void): void;
}

let loading: Promise<IPlotly> | null = null;

/** The page's plotly.js for lines, bars, areas and heat maps, fetched when the first figure needs it. */
export function loadPlotly(): Promise<IPlotly> {
  loading ??= import('plotly.js-cartesian-dist-min').then(
    module => module.default,
    (reason: unknown) => {
      // A failed download must not be remembered as the answer.
      loading = null;
      throw reason;
    }
  );
  return loading;
}

/** What `loadPlotly` draws; a notebook's figure of anything else needs the whole plotly.js, three times as large. */
const CARTESIAN = new Set([
  'bar',
  'box',
  'contour',
  'heatmap',
  'histogram',
  'histogram2d',
  'histogram2dcontour',
  'image',
  'pie',
  'scatter',
  'violin'
]);

/** A plotly.js that can draw these traces. */
export function plotlyFor(traces: readonly PartialJSONObject[]): Promise<IPlotly> {
  const few = traces.every(trace => CARTESIAN.has((trace.type as string | undefined) ?? 'scatter'));
  return few ? loadPlotly() : import('plotly.js-dist-min').then(module => module.default);
}

/** Let widgets in cells draw with the same plotly.js instead of bringing their own. */
export function offerPlotly(): void {
  Object.defineProperty(globalThis, Symbol.for('gipfel.plotly'), { value: loadPlotly, configurable: true });
}
