import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';

import { chooseUtc } from '../common/clock';
import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { mountainIcon } from '../common/icon';
import { IGipfelPanel } from '../tokens';
import { GipfelPanel } from './panel';
import { keepRoom, showAtFirstVisit } from './placement';
import { RunModel } from './run';
import { SectionList } from './section-list';
import { SelectedSection } from './selected-section';
import { tourSteps } from './tour';
import { addWidePanel, WidePanel } from './wide';

const DOCUMENTATION = 'https://github.com/gipfel-hpc/gipfel#readme';

/** The panel, to which the features add their sections. */
export const panelPlugin: JupyterFrontEndPlugin<IGipfelPanel> = {
  id: '@gipfel/extension:panel',
  description: 'Adds the Gipfel panel to the right sidebar.',
  autoStart: true,
  provides: IGipfelPanel,
  optional: [ICommandPalette, ILayoutRestorer, ILauncher, IStateDB, ITranslator, ILabShell, ISettingRegistry],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    launcher: ILauncher | null,
    state: IStateDB | null,
    translator: ITranslator | null,
    shell: ILabShell | null,
    settings: ISettingRegistry | null
  ): IGipfelPanel => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const selectedSection = new SelectedSection(state);
    void selectedSection.load();
    const steps = tourSteps(trans, app.commands);
    const run = new RunModel(app.serviceManager.serverSettings);
    const sections = new SectionList(selectedSection);
    const panel = new GipfelPanel(run, sections, trans, steps, () => {
      void app.commands.execute(CommandIDs.openWide);
    });
    app.shell.add(panel, 'right', { rank: 700, type: 'Gipfel' });
    shell?.layoutModified.connect(() => {
      panel.fitLayout();
    });
    restorer?.add(panel, panel.id);
    if (shell !== null) {
      // Not in Jupyter Notebook, whose list of files has no tabs beside it that would close the panel.
      void showAtFirstVisit(app, state);
      void keepRoom(app, shell, panel);
    }

    addCommands(app, panel, trans);
    addWidePanel(app, () => new WidePanel(run, sections, trans), shell, restorer, trans);
    void followClock(sections, settings);
    const command = CommandIDs.openPanel;
    const category = trans.__('Gipfel');
    palette?.addItem({ command, category });
    palette?.addItem({ command: CommandIDs.openWide, category });
    palette?.addItem({ command: CommandIDs.takeTour, category });
    palette?.addItem({ command: CommandIDs.openDocumentation, category });
    launcher?.add({ command, args: { short: true }, category, rank: 0 });
    launcher?.add({ command: CommandIDs.openDocumentation, args: { short: true }, category, rank: 100 });
    return panel;
  }
};

/** Follow the setting of the clock: what is drawn next is on it, and the sections' texts are drawn now. */
async function followClock(sections: SectionList, registry: ISettingRegistry | null): Promise<void> {
  const settings = await registry?.load(panelPlugin.id);
  // Local time is the default, which leaves the choice on the hub's pages as it is.
  if (settings?.composite.clock === 'UTC') {
    chooseUtc(true);
    sections.redraw();
  }
  settings?.changed.connect(() => {
    chooseUtc(settings.composite.clock === 'UTC');
    sections.redraw();
  });
}

function addCommands(app: JupyterFrontEnd, panel: GipfelPanel, trans: TranslationBundle): void {
  app.commands.addCommand(CommandIDs.openPanel, {
    label: args => (args.short === true ? trans.__('Panel') : trans.__('Open the Gipfel Panel')),
    caption: trans.__('Show how saturated the GPUs and the host of this job are'),
    icon: mountainIcon,
    describedBy: {
      args: { type: 'object', properties: { short: { type: 'boolean' }, section: { type: 'string' } } }
    },
    execute: args => {
      if (typeof args.section === 'string') {
        panel.selectSection(args.section);
      }
      app.shell.activateById(panel.id);
    }
  });
  app.commands.addCommand(CommandIDs.takeTour, {
    label: trans.__('Take the Tour'),
    caption: trans.__('Explain the Gipfel panel in five steps'),
    describedBy: NO_ARGUMENTS,
    execute: () => {
      app.shell.activateById(panel.id);
      panel.tour.go(0);
    }
  });
  app.commands.addCommand(CommandIDs.openDocumentation, {
    label: args => {
      if (args.short === true) {
        // The width of a launcher's tile cuts longer words.
        return trans.__('Docs');
      }
      return args.isMenu === true ? trans.__('Documentation') : trans.__('Open the Documentation');
    },
    caption: trans.__('Open the documentation of Gipfel in a new tab of the browser'),
    icon: args => (args.short === true ? mountainIcon : undefined),
    describedBy: {
      args: { type: 'object', properties: { isMenu: { type: 'boolean' }, short: { type: 'boolean' } } }
    },
    execute: () => {
      window.open(DOCUMENTATION, '_blank', 'noopener');
    }
  });
}
