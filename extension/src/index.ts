import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager } from '@jupyterlab/apputils';
import { IEditorServices } from '@jupyterlab/codeeditor';
import { ILauncher } from '@jupyterlab/launcher';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addBatch } from './batch/commands';
import { addCommands, CommandIDs } from './commands';
import { showAtFirstVisit } from './first-visit';
import { addToLauncher } from './launcher';
import { addLaunches } from './launches/commands';
import { LeavingModel } from './leaving';
import { addLiveOutputs } from './live-output';
import { plotlyRendererFactory } from './mime';
import { SaturationModel } from './model';
import { LeavingNotices } from './notices';
import { GipfelPanel } from './panel';
import { offerPlotly } from './plot';
import { GipfelRequests } from './request';
import { saturationSection } from './saturation/section';
import { vettingSection } from './vetting/section';

/** The sidebar panel and its commands. */
const panel: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:plugin',
  description: 'A sidebar with the live saturation of GPUs and host.',
  autoStart: true,
  requires: [IEditorServices],
  optional: [
    ICommandPalette,
    ILayoutRestorer,
    ISettingRegistry,
    IThemeManager,
    ITranslator,
    ILauncher,
    IStateDB,
    ILabShell
  ],
  activate: (
    app: JupyterFrontEnd,
    services: IEditorServices,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    settings: ISettingRegistry | null,
    themes: IThemeManager | null,
    translator: ITranslator | null,
    launcher: ILauncher | null,
    state: IStateDB | null,
    shell: ILabShell | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const model = new SaturationModel(new GipfelRequests(app.serviceManager.serverSettings));
    const sections = [
      saturationSection(model, trans, () => {
        void app.commands.execute(CommandIDs.openNotebook);
      }),
      vettingSection(app, trans, services),
      addLaunches(app, trans, palette),
      addBatch(app, trans, palette)
    ];
    const widget = new GipfelPanel(model, sections, trans);
    addCommands(app, model, trans, palette);
    app.shell.add(widget, 'right', { rank: 700, type: 'Gipfel' });
    shell?.layoutModified.connect(() => {
      widget.fitLayout();
    });
    restorer?.add(widget, widget.id);
    void addToLauncher(app, launcher, palette, trans);
    void showAtFirstVisit(app, state, widget.id);
    followTheme(model, themes);
    const leaving = new LeavingModel(model.requests);
    new LeavingNotices(leaving, trans, () => void model.refreshRun());
    void leaving.refresh();
    void followSettings(model, settings);
  }
};

/** Plotly figures in notebooks, drawn with the same plotly.js as the panel. */
const mime: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:mime',
  description: 'Renders plotly figures and saved widgets, and offers plotly.js to widgets.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, registry: IRenderMimeRegistry, translator: ITranslator | null) => {
    offerPlotly();
    registry.addFactory(plotlyRendererFactory, 0);
    addLiveOutputs(app, registry, (translator ?? nullTranslator).load('gipfel'));
  }
};

function followTheme(model: SaturationModel, themes: IThemeManager | null): void {
  const update = (): void => {
    model.shown.setDark(themes?.theme ? !themes.isLight(themes.theme) : false);
  };
  themes?.themeChanged.connect(update);
  update();
}

async function followSettings(model: SaturationModel, registry: ISettingRegistry | null): Promise<void> {
  const settings = await registry?.load(panel.id);
  const update = (): void => {
    model.shown.setWindow((settings?.composite.window as number | undefined) ?? 600);
    model.simulatedSource = (settings?.composite.simulatedSource as string | undefined) ?? 'training';
  };
  settings?.changed.connect(update);
  update();
}

export default [panel, mime];
