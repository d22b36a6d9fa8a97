import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { mountainIcon } from '../icon';
import type { ISection } from '../section';
import type { ILaunchActions } from './actions';
import { LaunchesModel } from './model';
import { LaunchRequests } from './requests';
import { SavedLaunch } from './saved';
import { launchesSection } from './section';

/** The command that opens a notebook with a launch cell. */
export const NEW_LAUNCH = 'gipfel:new-launch';

const CELL = 'from gipfel_widgets import LaunchCell\n\nLaunchCell()';

/** How often a cell is run that the lab drops, which it does while it connects to a new kernel. */
const TRIES = 3;
const PAUSE_MS = 2_000;

/** What a new notebook's widget has, of whichever version of the lab. */
interface INotebookWidget {
  readonly context: {
    readonly ready: Promise<void>;
    readonly sessionContext: {
      readonly ready: Promise<void>;
      readonly session: { readonly kernel: { readonly info: Promise<unknown> } | null } | null;
    };
  };
  readonly content: {
    readonly activeCell: {
      readonly model: {
        readonly executionCount: number | null;
        readonly sharedModel: { setSource(source: string): void };
      };
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
  const { openNotebook, newLaunch } = actionsOf(app, model);
  Object.assign(globalThis, {
    [Symbol.for('gipfel.openLaunch')]: openNotebook,
    [Symbol.for('gipfel.launchFile')]: requests.fileUrl.bind(requests)
  });
  app.commands.addCommand(NEW_LAUNCH, {
    label: trans.__('New Launch'),
    icon: mountainIcon,
    caption: trans.__('Open a notebook with a launch cell: training on many GPUs'),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: async () => {
      const made = (await app.commands.execute('notebook:create-new', {
        kernelName: 'python3'
      })) as INotebookWidget | undefined;
      if (made !== undefined) {
        await made.context.ready;
        made.content.activeCell?.model.sharedModel.setSource(CELL);
        await runFirstCell(app, made);
      }
    }
  });
  palette?.addItem({ command: NEW_LAUNCH, category: trans.__('Gipfel') });
  return launchesSection(model, trans, { openNotebook, newLaunch });
}

/** A launch in a saved cell, by its id; null where this notebook server does not know it. */
export async function savedLaunch(
  app: JupyterFrontEnd,
  trans: TranslationBundle,
  id: string
): Promise<SavedLaunch | null> {
  const model = new LaunchesModel(new LaunchRequests(app.serviceManager.serverSettings), id);
  await model.refresh();
  return model.items === null ? null : new SavedLaunch(model, trans, actionsOf(app, model));
}

function actionsOf(app: JupyterFrontEnd, model: LaunchesModel): ILaunchActions {
  return {
    openNotebook: id => {
      void model.notebook(id).then(path => {
        if (path !== null) {
          void app.commands.execute('docmanager:open', { path });
        }
      });
    },
    newLaunch: () => {
      void app.commands.execute(NEW_LAUNCH);
    }
  };
}

/** Run the only cell of a new notebook as soon as its kernel answers. */
async function runFirstCell(app: JupyterFrontEnd, notebook: INotebookWidget): Promise<void> {
  const { sessionContext } = notebook.context;
  await sessionContext.ready;
  await sessionContext.session?.kernel?.info;
  const isRun = (): boolean => typeof notebook.content.activeCell?.model.executionCount === 'number';
  for (let tries = 0; tries < TRIES && !isRun(); tries++) {
    if (tries > 0) {
      await new Promise(resolve => window.setTimeout(resolve, PAUSE_MS));
    }
    // It answers when the cell has run, and at once for a cell that was dropped.
    await app.commands.execute('notebook:run-cell');
  }
}
