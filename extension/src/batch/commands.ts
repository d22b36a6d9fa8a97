import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  Dialog,
  type ICommandPalette,
  Notification,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { lineOf } from '../answer';
import { batchIcon } from '../icon';
import type { ISection } from '../section';
import { BatchDialogBody, type IBatchValues } from './dialog';
import { BatchModel } from './model';
import { BatchRequests, type IBatchForm, type IBatchRequest } from './requests';
import { batchSection } from './section';

/** The command of the notebook's toolbar. */
export const RUN_AS_BATCH_JOB = 'gipfel:run-as-batch-job';

/** What a notebook's widget has, of whichever version of the lab. */
interface INotebookWidget {
  readonly context?: { readonly path: string; readonly isReady?: boolean; save(): Promise<void> };
}

/** Add the command that runs the open notebook as a batch job; the panel's list of such jobs. */
export function addBatch(
  app: JupyterFrontEnd,
  trans: TranslationBundle,
  palette: ICommandPalette | null
): ISection {
  const model = new BatchModel(new BatchRequests(app.serviceManager.serverSettings));
  const open = (path: string): void => {
    void app.commands.execute('docmanager:open', { path });
  };
  const current = (): INotebookWidget['context'] => {
    const { context } = (app.shell.currentWidget ?? {}) as INotebookWidget;
    return context?.path.endsWith('.ipynb') ? context : undefined;
  };
  app.commands.addCommand(RUN_AS_BATCH_JOB, {
    label: trans.__('Run as Batch Job'),
    caption: trans.__('Run this notebook as a batch job, in an environment and on nodes of its own'),
    icon: batchIcon,
    describedBy: { args: { type: 'object', properties: {} } },
    isEnabled: () => current() !== undefined,
    execute: async () => {
      const context = current();
      if (context !== undefined) {
        await context.save();
        await ask(model, trans, context.path, open);
      }
    }
  });
  palette?.addItem({ command: RUN_AS_BATCH_JOB, category: trans.__('Gipfel') });
  return batchSection(model, trans, open);
}

/** Ask what to run it with, submit it, and say how to see it; after a mistake the form is as it was. */
async function ask(
  model: BatchModel,
  trans: TranslationBundle,
  path: string,
  open: (path: string) => void
): Promise<void> {
  let form: IBatchForm;
  try {
    form = await model.requests.form(path);
  } catch (error) {
    await showErrorMessage(trans.__('This notebook can’t run as a batch job'), lineOf(error));
    return;
  }
  let typed: IBatchValues | undefined;
  let problem = '';
  for (;;) {
    const body = new BatchDialogBody(path, form, trans, typed, problem);
    const { button, value } = await showDialog<IBatchRequest>({
      title: trans.__('Run as batch job'),
      body,
      buttons: [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Submit') })]
    });
    if (!button.accept || value === null) {
      return;
    }
    try {
      sayItIsSubmitted(await model.submit(value), value.output, trans, open);
      return;
    } catch (error) {
      typed = body.values;
      problem = lineOf(error);
    }
  }
}

function sayItIsSubmitted(
  jobId: string,
  output: string,
  trans: TranslationBundle,
  open: (path: string) => void
): void {
  Notification.success(trans.__('Job %1 is submitted: %2', jobId, output), {
    autoClose: 10_000,
    actions: [
      {
        label: trans.__('Open output'),
        callback: () => {
          open(output);
        }
      }
    ]
  });
}
