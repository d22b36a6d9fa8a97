import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { launchIcon } from '@jupyterlab/ui-components';

import { CommandIDs } from '../common/commands';
import { errorMessage } from '../common/error-message';
import { serverChanges } from '../common/server-changes';
import { IGipfelWorkloads } from '../tokens';
import { startService } from './dialog';
import { serviceKind } from './kind';
import { ServicesModel } from './model';
import { shareService } from './share';

/** Rank of the first tile in the launcher, after those of notebooks. */
const FIRST_RANK = 50;

/** Services: their kind of workload, and a tile for each blueprint, which starts or opens its service. */
export const servicesPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:services',
  description: 'Starts services, such as TensorBoard, from the launcher, and lists and shares them.',
  autoStart: true,
  requires: [IGipfelWorkloads],
  optional: [ICommandPalette, ILauncher, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workloads: IGipfelWorkloads,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    const model = new ServicesModel(serverSettings, serverChanges(serverSettings).of('services'));
    workloads.addKind(serviceKind(model, trans, service => void shareService(model, trans, service)));
    const command = CommandIDs.openService;
    app.commands.addCommand(command, {
      label: args => (args.title as string | undefined) ?? trans.__('Start a Service'),
      caption: args => (args.about as string | undefined) ?? '',
      icon: launchIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: { name: { type: 'string' }, title: { type: 'string' }, about: { type: 'string' } }
        }
      },
      execute: async args => {
        try {
          await openOrStart(app, model, args.name as string, trans);
        } catch (error) {
          Notification.error(errorMessage(error), { autoClose: false });
        }
      }
    });
    const category = trans.__('Services');
    void model.offers().then(
      offers => {
        offers.forEach(({ name, title, about }, place) => {
          const args = { name, title, about };
          launcher?.add({ command, args, category, rank: FIRST_RANK + place });
          palette?.addItem({ command, args, category: trans.__('Gipfel') });
        });
      },
      () => undefined
    );
  }
};

/** Open the running service of a blueprint's name in a new tab of the browser; else show the form to start it. */
async function openOrStart(
  app: JupyterFrontEnd,
  model: ServicesModel,
  name: string,
  trans: Parameters<typeof startService>[1]
): Promise<void> {
  await model.refresh();
  const running = (model.items ?? []).find(each => each.id === name && each.url !== '');
  if (running) {
    window.open(running.url, '_blank', 'noopener');
    return;
  }
  const offer = (await model.offers()).find(each => each.name === name);
  if (offer) {
    await startService(model, trans, offer, () => {
      void app.commands.execute(CommandIDs.openPanel, { section: 'workloads' });
    });
  }
}
