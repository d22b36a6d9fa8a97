import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { offerPlotly } from './plotly';
import { plotlyRendererFactory } from './renderer';

/** The renderer of plotly figures in notebooks, with the same plotly.js as the panel. */
export const figuresPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:figures',
  description: 'Renders plotly figures, and offers plotly.js to widgets.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  activate: (_: JupyterFrontEnd, registry: IRenderMimeRegistry) => {
    offerPlotly();
    registry.addFactory(plotlyRendererFactory, 0);
  }
};
