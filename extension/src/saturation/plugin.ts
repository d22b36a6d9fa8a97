import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, IThemeManager } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { followDark } from '../common/dark-theme';
import { IGipfelPanel } from '../tokens';
import { addGauges } from './gauge';
import { SaturationModel } from './model';
import { SaturationRequests } from './requests';
import { saturationSection } from './section';

/** The section with score, advice and plots. */
export const saturationPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:saturation',
  description: 'Shows how saturated the GPUs and the host are: score, advice and plots.',
  autoStart: true,
  requires: [IGipfelPanel],
  optional: [ICommandPalette, ISettingRegistry, IThemeManager, ITranslator, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    panel: IGipfelPanel,
    palette: ICommandPalette | null,
    settings: ISettingRegistry | null,
    themes: IThemeManager | null,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const model = new SaturationModel(new SaturationRequests(app.serviceManager.serverSettings), panel);
    addCommands(app, model, trans, palette);
    const drag = addGauges(app, model, trans, palette, restorer);
    panel.addSection(saturationSection(model, app.commands, drag, trans), { rank: 100 });
    followDark(themes, dark => {
      model.selection.setDark(dark);
    });
    void followSettings(model, settings);
  }
};

function addCommands(
  app: JupyterFrontEnd,
  model: SaturationModel,
  trans: TranslationBundle,
  palette: ICommandPalette | null
): void {
  const { commands } = app;
  commands.addCommand(CommandIDs.startSimulation, {
    label: trans.__('Show Simulated GPUs'),
    describedBy: NO_ARGUMENTS,
    execute: async () => {
      await commands.execute(CommandIDs.openPanel, { section: 'saturation' });
      await model.startSimulation();
    }
  });
  commands.addCommand(CommandIDs.showRun, {
    label: trans.__('Show the Plots of a Run'),
    describedBy: { args: { type: 'object', properties: { run: { type: 'string' } }, required: ['run'] } },
    execute: args => {
      model.selection.setRun(typeof args.run === 'string' ? args.run : '');
      return commands.execute(CommandIDs.openPanel, { section: 'saturation' });
    }
  });
  commands.addCommand(CommandIDs.stopSimulation, {
    label: trans.__('Stop the Simulated GPUs'),
    describedBy: NO_ARGUMENTS,
    isEnabled: () => model.status?.simulated !== false,
    execute: () => model.stopSimulation()
  });
  for (const command of [CommandIDs.startSimulation, CommandIDs.stopSimulation]) {
    palette?.addItem({ command, category: trans.__('Gipfel') });
  }
}

async function followSettings(model: SaturationModel, registry: ISettingRegistry | null): Promise<void> {
  const settings = await registry?.load(saturationPlugin.id);
  const update = (): void => {
    model.selection.setLast((settings?.composite.window as number | undefined) ?? 600);
    model.simulatedSource = (settings?.composite.simulatedSource as string | undefined) ?? 'training';
  };
  settings?.changed.connect(update);
  update();
}
