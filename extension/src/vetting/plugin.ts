import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IEditorServices } from '@jupyterlab/codeeditor';
import { PathExt } from '@jupyterlab/coreutils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { serverChanges } from '../common/server-changes';
import { IGipfelPanel } from '../tokens';
import { VettingModel } from './model';
import { VettingRequests } from './requests';
import { vettingSection } from './section';

/** Adds the section that vets the nodes of this job to the panel. */
export const vettingPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:vetting',
  description: 'Vets the nodes of this job with a protocol, and shows the report.',
  autoStart: true,
  requires: [IGipfelPanel, IEditorServices],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    panel: IGipfelPanel,
    editorServices: IEditorServices,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    // Protocols are found in and saved to the directory of the current notebook.
    const directory = (): string => PathExt.dirname(notebooks?.currentWidget?.context.path ?? '');
    const model = new VettingModel(
      new VettingRequests(serverSettings),
      directory,
      serverChanges(serverSettings).of('vetting')
    );
    panel.addSection(vettingSection(model, trans, editorServices), { rank: 300 });
  }
};
