import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { mountainIcon } from './icon';
import type { SaturationModel } from './model';

/** The notebook that measures with a cell what the panel shows. */
const NOTEBOOK = 'measure-saturation';

/** The commands of this extension. */
export const CommandIDs = {
  /** Show the panel. */
  openPanel: 'gipfel:open-panel',
  /** Record a simulated source beside the real ones. */
  startSimulation: 'gipfel:start-simulated-source',
  /** End the simulated source. */
  stopSimulation: 'gipfel:stop-simulated-source',
  /** Copy the notebook that measures saturation, and open the copy. */
  openNotebook: 'gipfel:open-measure-saturation'
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
    label: trans.__('Open the Gipfel Panel'),
    caption: trans.__('Show how saturated the GPUs and the host of this job are'),
    icon: mountainIcon,
    describedBy,
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
  commands.addCommand(CommandIDs.openNotebook, {
    label: trans.__('Open the Measure-Saturation Notebook'),
    describedBy,
    execute: () =>
      model.attempt(async () => {
        const path = await model.requests.copyNotebook(NOTEBOOK);
        await commands.execute('docmanager:open', { path });
      })
  });
  for (const command of Object.values(CommandIDs)) {
    palette?.addItem({ command, category: trans.__('Gipfel') });
  }
}
