import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { IJobCheckpoints } from '../api';
import { requestJson } from '../common/request';
import { JobDocumentModel } from '../job/document';
import { IGipfelJob, IGipfelPanel } from '../tokens';
import { checkpointsSection, checkpointsTab } from './tab';

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
    const settings = app.serviceManager.serverSettings;
    const model = (name: string): JobDocumentModel<IJobCheckpoints> =>
      new JobDocumentModel(
        ({ run, launch, layout, dark }) => {
          const words = { run, layout, dark: dark ? '1' : '0', ...(launch === '' ? {} : { launch }) };
          return requestJson<IJobCheckpoints>(
            settings,
            `job/checkpoints${URLExt.objectToQueryString(words)}`
          );
        },
        job.selection,
        job.state,
        { name, themed: true }
      );
    job.addTab(checkpointsTab(model('checkpoints'), trans), { rank: 39 });
    panel?.addSection(checkpointsSection(model('checkpoints-section'), job.selection, trans), { rank: 450 });
  }
};
