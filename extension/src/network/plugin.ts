import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addDocumentTab } from '../job/document-tab';
import { IGipfelJob } from '../tokens';
import { networkTab } from './tab';

/** The tab "Network" of the job page. */
export const networkPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:network',
  description: "Shows connections of a run's programs and ports that they opened on the job page.",
  autoStart: true,
  requires: [IGipfelJob],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, job: IGipfelJob, translator: ITranslator | null): void => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    addDocumentTab(app, job, trans, networkTab(trans));
  }
};
