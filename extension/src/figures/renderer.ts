import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { PartialJSONObject } from '@lumino/coreutils';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { readersFigure } from '../common/clock';
import { plotlyFor, type IPlotly } from './plotly';

/** What Gipfel's own figures have as `uirevision`. */
const OWN = 'gipfel';

export const PLOTLY_MIME_TYPE = 'application/vnd.plotly.v1+json';

/** A plotly figure in a notebook's output or in a document. */
export class RenderedPlotly extends Widget implements IRenderMime.IRenderer {
  constructor() {
    super();
    this.addClass('jp-Gipfel-renderedPlotly');
  }

  /** Draw the figure as it is, for its author chose its colours, but with UTC on the reader's clock. */
  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    // plotly.js writes into what it is given, and the model belongs to the notebook.
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
    const { data = [], layout: own } = figure.layout?.uirevision === OWN ? readersFigure(figure) : figure;
    const layout: PartialJSONObject = { height: 360, ...own };
    this._resizable = layout.width === undefined;
    await plotly.react(this.node, data, layout, figure.config);
    if (figure.frames) {
      await plotly.addFrames(this.node, figure.frames);
    }
  }

  override dispose(): void {
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

  private _plotly: IPlotly | null = null;
  private _resizable = false;
}

/** Renders plotly figures with the page's one plotly.js. */
export const plotlyRendererFactory: IRenderMime.IRendererFactory = {
  safe: true,
  mimeTypes: [PLOTLY_MIME_TYPE],
  // Before HTML and images that the same output may hold.
  defaultRank: 0,
  createRenderer: () => new RenderedPlotly()
};
