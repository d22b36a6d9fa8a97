import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addDocumentTab } from '../job/document-tab';
import { IGipfelJob } from '../tokens';
import { topologyTab } from './tab';

/** The tab "Topology" of the job page. */
export const topologyPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:topology',
  description: 'Shows switches, nodes, GPUs and NICs of a run on the job page.',
  autoStart: true,
  requires: [IGipfelJob],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, job: IGipfelJob, translator: ITranslator | null): void => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    addDocumentTab(app, job, trans, topologyTab(trans));
  }
};
