import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IGipfelPanel } from '../tokens';
import { LeavingModel } from './model';
import { LeavingNotices } from './notices';
import { LeavingRequests } from './requests';

/** The lab's notifications of the end of this server. */
export const noticesPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:notices',
  description: 'Warns before the time of this server ends or it is stopped as idle, and extends it.',
  autoStart: true,
  // The panel shows the time left, and is refreshed after an extension; the notices need no panel.
  optional: [IGipfelPanel, ITranslator],
  activate: (app: JupyterFrontEnd, panel: IGipfelPanel | null, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const model = new LeavingModel(new LeavingRequests(app.serviceManager.serverSettings));
    new LeavingNotices(model, trans, () => void panel?.refreshRun());
    model.start();
  }
};
