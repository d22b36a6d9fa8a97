import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addDocumentTab } from '../job/document-tab';
import { IGipfelJob } from '../tokens';
import { communicationTab } from './tab';

/** The tab "Communication" of the job page. */
export const communicationPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:communication',
  description: 'Shows bytes between ranks and the slowest collectives on the job page.',
  autoStart: true,
  requires: [IGipfelJob],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, job: IGipfelJob, translator: ITranslator | null): void => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    addDocumentTab(app, job, trans, communicationTab(trans));
  }
};
