import type { PartialJSONObject } from '@lumino/coreutils';

import type { IPlotly } from '../views/figures/plotly';

let loading: Promise<IPlotly> | null = null;

/** Load the page's plotly.js for lines, bars, areas and heat maps, on first use. */
export function loadPlotly(): Promise<IPlotly> {
  loading ??= import('plotly.js-cartesian-dist-min').then(
    module => module.default,
    (reason: unknown) => {
      // A failed download is retried on the next call.
      loading = null;
      throw reason;
    }
  );
  return loading;
}

/** Trace types of `loadPlotly`; others need the full plotly.js, which is three times as large. */
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

/** Load a plotly.js that can draw these traces. */
export function plotlyFor(traces: readonly PartialJSONObject[]): Promise<IPlotly> {
  const few = traces.every(trace => CARTESIAN.has((trace.type as string | undefined) ?? 'scatter'));
  return few ? loadPlotly() : import('plotly.js-dist-min').then(module => module.default);
}

/** Offer plotly.js to widgets in cells, so that they need not bring their own. */
export function offerPlotly(): void {
  Object.defineProperty(globalThis, Symbol.for('gipfel.plotly'), { value: loadPlotly, configurable: true });
}
