import type { JupyterFrontEnd } from '@jupyterlab/application';
import { type ICommandPalette, Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { notebookIcon } from '@jupyterlab/ui-components';

import { lineOf } from './answer';
import { mountainIcon } from './icon';
import type { SaturationModel } from './model';

/** The notebook that measures with a cell what the panel shows. */
const MEASURE = 'measure-saturation';

/** The commands of this extension. */
export const CommandIDs = {
  /** Show the panel. */
  openPanel: 'gipfel:open-panel',
  /** Record a simulated source beside the real ones. */
  startSimulation: 'gipfel:start-simulated-source',
  /** End the simulated source. */
  stopSimulation: 'gipfel:stop-simulated-source',
  /** Copy a notebook that comes with Gipfel, and open the copy. */
  openNotebook: 'gipfel:open-notebook'
} as const;

/** Add the commands, and put them into the palette where there is one. */
export function addCommands(
  app: JupyterFrontEnd,
  model: SaturationModel,
  trans: TranslationBundle,
  palette: ICommandPalette | null
): void {
  const { commands, shell } = app;
  const describedBy = { args: { type: 'object', properties: {}, additionalProperties: false } };
  const show = (): void => {
    shell.activateById('gipfel-panel');
  };
  commands.addCommand(CommandIDs.openPanel, {
    label: args => (args.short === true ? trans.__('Panel') : trans.__('Open the Gipfel Panel')),
    caption: trans.__('Show how saturated the GPUs and the host of this job are'),
    icon: mountainIcon,
    describedBy: { args: { type: 'object', properties: { short: { type: 'boolean' } } } },
    execute: show
  });
  commands.addCommand(CommandIDs.startSimulation, {
    label: trans.__('Show a Simulated Source'),
    describedBy,
    execute: async () => {
      show();
      await model.startSimulation();
    }
  });
  commands.addCommand(CommandIDs.stopSimulation, {
    label: trans.__('Stop the Simulated Source'),
    describedBy,
    isEnabled: () => model.status?.simulated !== false,
    execute: () => model.stopSimulation()
  });
  addNotebookCommand(app, model, trans);
  for (const command of [CommandIDs.openPanel, CommandIDs.startSimulation, CommandIDs.stopSimulation]) {
    palette?.addItem({ command, category: trans.__('Gipfel') });
  }
}

function addNotebookCommand(app: JupyterFrontEnd, model: SaturationModel, trans: TranslationBundle): void {
  const { commands } = app;
  commands.addCommand(CommandIDs.openNotebook, {
    label: args => {
      const title = (args.title as string | undefined) ?? trans.__('Open the Measure-Saturation Notebook');
      // A card of the launcher has little room.
      return args.short === true ? (title.split(':')[0] ?? title) : title;
    },
    caption: args => {
      const title = (args.title as string | undefined) ?? '';
      return trans.__('%1 (copies this notebook into your folder, and opens the copy)', title).trim();
    },
    icon: notebookIcon,
    describedBy: {
      args: { type: 'object', properties: { name: { type: 'string' }, title: { type: 'string' } } }
    },
    execute: async args => {
      try {
        const path = await model.requests.copyNotebook((args.name as string | undefined) ?? MEASURE);
        await commands.execute('docmanager:open', { path });
      } catch (error) {
        Notification.error(lineOf(error), { autoClose: false });
      }
    }
  });
}
