import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { batchIcon } from '../common/icon';
import { serverChanges } from '../common/server-changes';
import { IGipfelWorkloads } from '../tokens';
import type { IBatchRequest } from '../api';
import { valuesOf } from './job-fields';
import { batchKind } from './kind';
import { BatchModel } from './model';
import { BatchRequests } from './requests';
import { showDialogAndSubmit } from './submit';

/** Batch jobs: the command in the notebook's toolbar, and the kind of workload. */
export const batchPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:batch',
  description: 'Runs the current notebook as a batch job, and lists such jobs.',
  autoStart: true,
  requires: [IGipfelWorkloads, INotebookTracker],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    workloads: IGipfelWorkloads,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    const model = new BatchModel(
      new BatchRequests(serverSettings),
      serverChanges(serverSettings).of('batch')
    );
    const open = (path: string): void => {
      void app.commands.execute('docmanager:open', { path });
    };
    const showJobs = (): void => {
      void app.commands.execute(CommandIDs.openPanel, { section: 'workloads' });
    };
    const rerun = (request: IBatchRequest): void => {
      void showDialogAndSubmit(model, trans, request.path, open, showJobs, valuesOf(request));
    };
    workloads.addKind(batchKind(model, trans, open, rerun));

    /** Return the current notebook; null if another tab is current. */
    const current = (): NotebookPanel | null => {
      const { currentWidget } = notebooks;
      return currentWidget !== null && currentWidget === app.shell.currentWidget ? currentWidget : null;
    };
    const command = CommandIDs.runAsBatchJob;
    app.commands.addCommand(command, {
      label: trans.__('Run as Batch Job'),
      caption: trans.__('Run this notebook as a batch job, in its own environment and on its own nodes'),
      icon: batchIcon,
      describedBy: NO_ARGUMENTS,
      isEnabled: () => current() !== null,
      execute: async () => {
        const context = current()?.context;
        if (context) {
          await context.save();
          await showDialogAndSubmit(model, trans, context.path, open, showJobs);
        }
      }
    });
    palette?.addItem({ command, category: trans.__('Gipfel') });
  }
};
