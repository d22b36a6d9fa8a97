import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addDocumentTab } from '../job/document-tab';
import { IGipfelJob, IGipfelPanel } from '../tokens';
import { checkpointsTab } from './tab';

/** The tab "Checkpoints" of the job page, and the section of the panel for the same run. */
export const checkpointsPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:checkpoints',
  description: 'Shows the checkpoints of a run, what they cost, and the space left for them.',
  autoStart: true,
  requires: [IGipfelJob],
  optional: [IGipfelPanel, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    job: IGipfelJob,
    panel: IGipfelPanel | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const section = addDocumentTab(app, job, trans, checkpointsTab(trans));
    panel?.addSection(section, { rank: 450 });
  }
};
