import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { IJobNetwork } from '../api';
import { requestJson } from '../common/request';
import { JobDocumentModel } from '../job/document';
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
    const settings = app.serviceManager.serverSettings;
    const model = new JobDocumentModel(
      ({ run, launch, layout }) => {
        const words = { run, layout, ...(launch === '' ? {} : { launch }) };
        return requestJson<IJobNetwork>(settings, `job/network${URLExt.objectToQueryString(words)}`);
      },
      job.selection,
      job.state,
      { name: 'network', themed: false }
    );
    job.addTab(networkTab(model, trans), { rank: 38 });
  }
};
