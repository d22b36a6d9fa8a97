import {
  ILayoutRestorer,
  IRouter,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IThemeManager, WidgetTracker } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { followDark } from '../common/dark-theme';
import { mountainIcon } from '../common/icon';
import { IGipfelJob, IGipfelPanel } from '../tokens';
import { JobFigures } from './figures';
import { PATTERN } from './location';
import { JobModel } from './model';
import { PageOpener } from './opener';
import { addOwnTabs, JobTabs } from './page';
import { JobRequests } from './requests';
import { jobSection } from './section';
import { JobSelection } from './selection';

/** The job page in the main area, and its summary in the panel. */
export const jobPlugin: JupyterFrontEndPlugin<IGipfelJob> = {
  id: '@gipfel/extension:job',
  description: 'Shows all ranks of a run in the main area: verdicts, places, metrics, events.',
  autoStart: true,
  provides: IGipfelJob,
  optional: [IGipfelPanel, ICommandPalette, ILauncher, ILayoutRestorer, IRouter, IThemeManager, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    panel: IGipfelPanel | null,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    restorer: ILayoutRestorer | null,
    router: IRouter | null,
    themes: IThemeManager | null,
    translator: ITranslator | null
  ): IGipfelJob => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const selection = new JobSelection();
    const requests = new JobRequests(app.serviceManager.serverSettings);
    const model = new JobModel(requests, selection);
    const tabs = new JobTabs();
    addOwnTabs(tabs, model, new JobFigures(model), trans);
    const tracker = new WidgetTracker<ReturnType<PageOpener['page']>>({ namespace: 'gipfel-job' });
    const opener = new PageOpener(app.shell, model, tabs, tracker, trans);
    addCommands(app, opener, trans);
    const command = CommandIDs.openJob;
    const category = trans.__('Gipfel');
    palette?.addItem({ command, category });
    launcher?.add({ command, args: { short: true }, category, rank: 0.5 });
    router?.register({ command: CommandIDs.openJobFromUrl, pattern: PATTERN, rank: 50 });
    void restorer?.restore(tracker, {
      command,
      args: page => ({ place: opener.placeOf(page) }),
      name: () => 'job'
    });
    followDark(themes, dark => {
      selection.setDark(dark);
    });
    panel?.addSection(jobSection(new JobModel(requests, new JobSelection()), app.commands, trans), {
      rank: 400
    });
    return {
      selection,
      state: model,
      addTab: (tab, options) => tabs.addTab(tab, options?.rank),
      addPart: (part, options) => tabs.addPart(part, options?.rank),
      open: (run, launch) => {
        opener.open(run, launch);
      }
    };
  }
};

function addCommands(app: JupyterFrontEnd, opener: PageOpener, trans: TranslationBundle): void {
  // JupyterLab routes late, when the page of its workspace may have changed the URL already.
  const { search } = window.location;
  void app.restored.then(() => {
    opener.begin(search);
  });
  app.commands.addCommand(CommandIDs.openJob, {
    label: args => (args.short === true ? trans.__('Job') : trans.__('Open the Job Page')),
    caption: trans.__('Show all ranks of a run: where they run, what they do, what is wrong'),
    icon: mountainIcon,
    describedBy: {
      args: {
        type: 'object',
        properties: {
          short: { type: 'boolean' },
          run: { type: 'string' },
          launch: { type: 'string' },
          place: { type: 'string' }
        }
      }
    },
    execute: args => {
      const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined);
      const place = text(args.place);
      return place === undefined ? opener.open(text(args.run), text(args.launch)) : opener.restore(place);
    }
  });
  app.commands.addCommand(CommandIDs.openJobFromUrl, {
    label: trans.__('Open the Job Page of This URL'),
    describedBy: NO_ARGUMENTS,
    isVisible: () => false,
    execute: () => {
      if (opener.followsPage) {
        opener.openUrl(window.location.search);
      }
    }
  });
}
