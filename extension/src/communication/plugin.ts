import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { IJobCommunication } from '../api';
import { requestJson } from '../common/request';
import { JobDocumentModel } from '../job/document';
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
    const settings = app.serviceManager.serverSettings;
    const model = new JobDocumentModel(
      ({ run, launch, layout, dark }) => {
        const words = { run, layout, dark: dark ? '1' : '0', ...(launch === '' ? {} : { launch }) };
        return requestJson<IJobCommunication>(
          settings,
          `job/communication${URLExt.objectToQueryString(words)}`
        );
      },
      job.selection,
      job.state,
      { name: 'communication', themed: true }
    );
    job.addTab(communicationTab(model, trans), { rank: 35 });
  }
};
