import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { PartialJSONObject } from '@lumino/coreutils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { localTimeFigure } from '../common/clock';
import type { IPlotly } from '../views/figures/plotly';
import { themedFigure } from '../views/figures/theme';
import { plotlyFor } from './plotly';

/** Value of `uirevision` in figures of Gipfel. */
const OWN = 'gipfel';

export const PLOTLY_MIME_TYPE = 'application/vnd.plotly.v1+json';

/** A plotly figure in the output of a notebook or in a document. */
export class RenderedPlotly extends Widget implements IRenderMime.IRenderer {
  constructor() {
    super();
    this.addClass('jp-Gipfel-renderedPlotly');
    this._themes.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name'] });
  }

  /**
   * Draw the figure in its author's colours; in Gipfel's figures, take the colours of texts from the theme, and
   * convert UTC to the browser's time zone.
   */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._model = model;
    // plotly.js modifies its input, and the model belongs to the notebook.
    const figure = structuredClone(model.data[PLOTLY_MIME_TYPE]) as {
      data?: PartialJSONObject[];
      layout?: PartialJSONObject;
      config?: PartialJSONObject;
      frames?: PartialJSONObject[];
    };
    const plotly = await plotlyFor(figure.data ?? []);
    if (this.isDisposed) {
      return;
    }
    this._plotly = plotly;
    this._own = figure.layout?.uirevision === OWN;
    const { data = [], layout: drawn } = this._own
      ? themedFigure(localTimeFigure(figure), document.body)
      : figure;
    const layout: PartialJSONObject = { height: 360, ...drawn };
    this._resizable = layout.width === undefined;
    await plotly.react(this.node, data, layout, figure.config);
    if (figure.frames) {
      await plotly.addFrames(this.node, figure.frames);
    }
  }

  override dispose(): void {
    this._themes.disconnect();
    this._plotly?.purge(this.node);
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._resize();
  }

  protected override onResize(message: Widget.ResizeMessage): void {
    super.onResize(message);
    this._resize();
  }

  private _resize(): void {
    if (this._plotly && this._resizable && this.isVisible) {
      void this._plotly.Plots.resize(this.node);
    }
  }

  private readonly _themes = new MutationObserver(() => {
    if (this._own && this._model) {
      void this.renderModel(this._model);
    }
  });
  private _plotly: IPlotly | null = null;
  private _model: IRenderMime.IMimeModel | null = null;
  /** True for a figure of Gipfel. */
  private _own = false;
  private _resizable = false;
}

/** Renders plotly figures with the page's copy of plotly.js. */
export const plotlyRendererFactory: IRenderMime.IRendererFactory = {
  safe: true,
  mimeTypes: [PLOTLY_MIME_TYPE],
  // Preferred over HTML and images in the same output.
  defaultRank: 0,
  createRenderer: () => new RenderedPlotly()
};
