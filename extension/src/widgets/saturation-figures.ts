import type { IFigure } from '../api';
import { FigureAids } from '../views/figures/aids';
import { DrawQueue } from '../views/figures/draw-queue';
import type { IFigureFollower, IFigureSource } from '../views/figures/figure';
import type { IFigureOptions } from '../views/figures/plot';
import type { IPlotly, PlotlyLoader } from '../views/figures/plotly';
import type { SampleUpdate } from '../views/figures/traces';
import type { IWidgetModel } from './host';

/** The name of the figure that new samples extend; the kernel redraws the others. */
export const ACTIVITY = 'activity';

const OFFER = Symbol.for('gipfel.plotly');
/** Time within which the plugin of the panel starts, if it is installed. */
const OFFER_MS = 4000;
const LOOK_MS = 200;

/** Return plotly.js, or null if the page does not offer it. */
export async function offeredPlotly(): Promise<IPlotly | null> {
  const page = globalThis as unknown as Record<symbol, PlotlyLoader | undefined>;
  for (let waited = 0; waited < OFFER_MS && !page[OFFER]; waited += LOOK_MS) {
    await new Promise(resolve => setTimeout(resolve, LOOK_MS));
  }
  return (await page[OFFER]?.()) ?? null;
}

/** The figures of a cell, from the kernel's state and the samples that it sends. */
export class CellFigures implements IFigureSource {
  /** @param _themeChanged Called when the page has another theme. */
  constructor(
    private readonly _kernel: IWidgetModel,
    private readonly _plotly: IPlotly,
    private readonly _themeChanged: () => void
  ) {
    const attributeFilter = ['data-jp-theme-light', 'data-jp-theme-name'];
    this._themes.observe(document.body, { attributes: true, attributeFilter });
  }

  readonly loadPlotly = (): Promise<IPlotly> => Promise.resolve(this._plotly);

  readonly queue = new DrawQueue();

  readonly marked = null;

  readonly aids = new FigureAids();

  figure(name: string): IFigure | null {
    const plots = (this._kernel.get('plots') ?? {}) as Readonly<Record<string, IFigure>>;
    return (name === ACTIVITY ? (this._kernel.get('figure') as IFigure | undefined) : plots[name]) ?? null;
  }

  /** Return the options: no server redraws the activity after a zoom or for a dark page. */
  options(name: string): IFigureOptions {
    return name === ACTIVITY
      ? { standalone: true, darkColours: this._kernel.get('dark_colours') as Record<string, string> }
      : {};
  }

  follow(name: string, follower: IFigureFollower): () => void {
    const event = name === ACTIVITY ? 'change:figure' : 'change:plots';
    this._followers.add(follower);
    const replaced = (): void => {
      follower.replaced();
    };
    this._kernel.on(event, replaced);
    return () => {
      this._followers.delete(follower);
      this._kernel.off(event, replaced);
    };
  }

  /** Pass on new samples. */
  extend(update: SampleUpdate): void {
    for (const follower of this._followers) {
      follower.extended(update);
    }
  }

  zoom(): void {
    // The figure keeps its zoom itself.
  }

  dispose(): void {
    this._themes.disconnect();
  }

  private readonly _followers = new Set<IFigureFollower>();
  private readonly _themes = new MutationObserver(() => {
    for (const follower of this._followers) {
      follower.restyled();
    }
    this._themeChanged();
  });
}
