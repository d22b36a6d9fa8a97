import type { PartialJSONObject } from '@lumino/coreutils';

import type { IPlotlyClick } from './click';

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

/** Loads the page's plotly.js: the panel has it as a chunk of its own, and a widget takes the panel's. */
export type PlotlyLoader = () => Promise<IPlotly>;

/** A node with a plot of plotly.js. */
export interface IPlotlyNode extends HTMLElement {
  on(event: 'plotly_relayout', listener: (change: Readonly<Record<string, unknown>>) => void): void;
  on(event: 'plotly_click', listener: (click: IPlotlyClick) => void): void;
}
