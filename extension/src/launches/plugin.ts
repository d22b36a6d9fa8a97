import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { mountainIcon } from '../common/icon';
import { serverChanges } from '../common/server-changes';
import { IGipfelLaunches, IGipfelWorkloads } from '../tokens';
import type { ILaunchActions } from './actions';
import { launchKind } from './kind';
import { LaunchesModel } from './model';
import { openLaunchNotebook } from './new-launch';
import { LaunchRequests } from './requests';
import { SavedLaunch } from './saved';

/** Launches: their kind of workload, the command for a new one, and views of single launches in notebooks. */
export const launchesPlugin: JupyterFrontEndPlugin<IGipfelLaunches> = {
  id: '@gipfel/extension:launches',
  description: 'Lists launches with their logs, and opens a notebook for a new one.',
  autoStart: true,
  provides: IGipfelLaunches,
  requires: [IGipfelWorkloads],
  optional: [ICommandPalette, ILauncher, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workloads: IGipfelWorkloads,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    translator: ITranslator | null
  ): IGipfelLaunches => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    const requests = new LaunchRequests(serverSettings);
    const changes = serverChanges(serverSettings).of('launches');
    const model = new LaunchesModel(requests, '', changes);
    const actions = actionsOf(app, model);
    workloads.addKind(launchKind(model, trans, actions));
    // The widget of a launch cell, outside of JupyterLab, uses these for its notebook, its ranks and files.
    Object.assign(globalThis, {
      [Symbol.for('gipfel.openLaunch')]: actions.openNotebook,
      [Symbol.for('gipfel.openJob')]: (id: string, run: string) => actions.openJob?.(id, run),
      [Symbol.for('gipfel.launchFile')]: requests.fileUrl.bind(requests)
    });
    const command = CommandIDs.newLaunch;
    app.commands.addCommand(command, {
      label: trans.__('Training Launch'),
      icon: mountainIcon,
      caption: trans.__('Open a notebook with a launch cell, which trains on many GPUs'),
      describedBy: NO_ARGUMENTS,
      execute: () => openLaunchNotebook(app.commands)
    });
    const category = trans.__('Gipfel');
    palette?.addItem({ command, category });
    launcher?.add({ command, category, rank: 1 });
    return {
      createView: async id => {
        const own = new LaunchesModel(requests, id, changes);
        await own.refresh();
        return own.items === null ? null : new SavedLaunch(own, trans, actionsOf(app, own));
      }
    };
  }
};

function actionsOf({ commands }: JupyterFrontEnd, model: LaunchesModel): ILaunchActions {
  return {
    openNotebook: id => {
      void model.notebook(id).then(path => {
        if (path !== null) {
          void commands.execute('docmanager:open', { path });
        }
      });
    },
    // Evaluated at each draw: the plugin of the page may be activated later, or not at all.
    get openJob() {
      return commands.hasCommand(CommandIDs.openJob)
        ? (id: string, run: string): void => {
            // A launch in a job of its own is not below the run folder of that job.
            const name = run.replace(/^.*\//, '');
            const own = id.includes('/') ? id.replace(/\/[^/]*$/, '') : '';
            void commands.execute(CommandIDs.openJob, { run: name === '' ? own : name, launch: id });
          }
        : undefined;
    },
    newLaunch: () => {
      void commands.execute(CommandIDs.newLaunch);
    }
  };
}
