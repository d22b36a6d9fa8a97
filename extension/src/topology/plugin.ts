import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { IJobTopology } from '../api';
import { requestJson } from '../common/request';
import { JobDocumentModel } from '../job/document';
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
    const settings = app.serviceManager.serverSettings;
    const model = new JobDocumentModel(
      ({ run, launch, layout }) => {
        const words = { run, layout, ...(launch === '' ? {} : { launch }) };
        return requestJson<IJobTopology>(settings, `job/topology${URLExt.objectToQueryString(words)}`);
      },
      job.selection,
      job.state,
      { name: 'topology', themed: false }
    );
    job.addTab(topologyTab(model, trans), { rank: 30 });
  }
};
