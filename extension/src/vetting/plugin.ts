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

/** The section for vetting the nodes of this job. */
export const vettingPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:vetting',
  description: 'Vets the nodes of this job with a protocol, and shows the report.',
  autoStart: true,
  requires: [IGipfelPanel, IEditorServices],
  optional: [INotebookTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    panel: IGipfelPanel,
    services: IEditorServices,
    notebooks: INotebookTracker | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    const directory = (): string => PathExt.dirname(notebooks?.currentWidget?.context.path ?? '');
    const model = new VettingModel(
      new VettingRequests(serverSettings),
      directory,
      serverChanges(serverSettings).of('vetting')
    );
    panel.addSection(vettingSection(model, trans, services), { rank: 300 });
  }
};
