import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../common/commands';
import { serverChanges } from '../common/server-changes';
import { IGipfelPanel } from '../tokens';
import { ActivityItem } from './item';
import { ActivityModel } from './model';

/** The status bar item with the current activity of the GPUs. */
export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:status-bar',
  description: 'Shows in the status bar how busy the GPUs are.',
  autoStart: true,
  requires: [IGipfelPanel],
  // Jupyter Notebook has no status bar.
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    _: IGipfelPanel,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ) => {
    if (statusBar === null) {
      return;
    }
    const trans = (translator ?? nullTranslator).load('gipfel');
    const model = new ActivityModel(serverChanges(app.serviceManager.serverSettings));
    const item = new ActivityItem(model, trans, () => {
      void app.commands.execute(CommandIDs.openPanel, { section: 'saturation' });
    });
    statusBar.registerStatusItem(statusBarPlugin.id, {
      item,
      align: 'right',
      rank: 900,
      isActive: () => model.active,
      activeStateChanged: model.changed
    });
  }
};
