import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { IGipfelPanel } from '../tokens';
import { LifetimeModel } from './model';
import { LifetimeNotices } from './notices';
import { LifetimeRequests } from './requests';

/** Notifications before the end of this server. */
export const noticesPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:notices',
  description: 'Warns before the time of this server ends or it is stopped as idle, and extends it.',
  autoStart: true,
  // The panel shows the remaining time, so it is refreshed after an extension; notices work without it.
  optional: [IGipfelPanel, ITranslator],
  activate: (app: JupyterFrontEnd, panel: IGipfelPanel | null, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const model = new LifetimeModel(new LifetimeRequests(app.serviceManager.serverSettings));
    new LifetimeNotices(model, trans, () => void panel?.refreshRun());
    model.start();
  }
};
