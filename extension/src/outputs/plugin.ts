import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { INotebookModel, NotebookPanel } from '@jupyterlab/notebook';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IGipfelLaunches } from '../tokens';
import { LIVE_MIME_TYPE, LiveOutput } from './output';

/** Lower, so preferred, than that of the renderer of widgets, which is -10. */
const RANK = -20;

/** Shows the saved view of Gipfel's widgets in notebooks until the kernel sends the live one. */
export const outputsPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:outputs',
  description: "Shows the saved view of Gipfel's widgets until the kernel responds.",
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [IGipfelLaunches, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    registry: IRenderMimeRegistry,
    launches: IGipfelLaunches | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const extension: DocumentRegistry.IWidgetExtension<NotebookPanel, INotebookModel> = {
      createNew: panel => {
        const { rendermime } = panel.content;
        const createRenderer = (): LiveOutput => new LiveOutput(rendermime, registry, trans, launches);
        rendermime.addFactory({ safe: false, mimeTypes: [LIVE_MIME_TYPE], createRenderer }, RANK);
      }
    };
    // INotebookTracker would be too late: the first outputs may already be rendered.
    app.docRegistry.addWidgetExtension('Notebook', extension);
  }
};
