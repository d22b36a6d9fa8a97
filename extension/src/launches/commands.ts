import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { ISection } from '../section';
import { LaunchesModel } from './model';
import { LaunchRequests } from './requests';
import { launchesSection } from './section';

const NEW_LAUNCH = 'gipfel:new-launch';
const CELL = 'from gipfel_widgets import LaunchCell\n\nLaunchCell()';

/** What a new notebook's widget has, of whichever version of the lab. */
interface INotebookWidget {
  readonly context: { readonly ready: Promise<void> };
  readonly content: {
    readonly activeCell: {
      readonly model: { readonly sharedModel: { setSource(source: string): void } };
    } | null;
  };
}

/** Add the list of launches, the command for a new one, and what a cell's view opens its notebook by. */
export function addLaunches(
  app: JupyterFrontEnd,
  trans: TranslationBundle,
  palette: ICommandPalette | null
): ISection {
  const requests = new LaunchRequests(app.serviceManager.serverSettings);
  const model = new LaunchesModel(requests);
  const openNotebook = (id: string): void => {
    void model.notebook(id).then(path => {
      if (path !== null) {
        void app.commands.execute('docmanager:open', { path });
      }
    });
  };
  Object.assign(globalThis, {
    [Symbol.for('gipfel.openLaunch')]: openNotebook,
    [Symbol.for('gipfel.launchFile')]: requests.fileUrl.bind(requests)
  });
  app.commands.addCommand(NEW_LAUNCH, {
    label: trans.__('New Launch'),
    caption: trans.__('Open a notebook with a launch cell: training on many GPUs'),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: async () => {
      const made = (await app.commands.execute('notebook:create-new', {
        kernelName: 'python3'
      })) as INotebookWidget | undefined;
      await made?.context.ready;
      made?.content.activeCell?.model.sharedModel.setSource(CELL);
    }
  });
  palette?.addItem({ command: NEW_LAUNCH, category: trans.__('Gipfel') });
  return launchesSection(model, trans, {
    openNotebook,
    newLaunch: () => {
      void app.commands.execute(NEW_LAUNCH);
    }
  });
}
