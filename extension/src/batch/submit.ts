import { Dialog, Notification, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IBatchForm, IBatchRequest } from '../api';
import { errorMessage } from '../common/error-message';
import { BatchDialogBody } from './dialog';
import type { IBatchValues } from './job-fields';
import type { BatchModel } from './model';

/** Show the dialog, with the values of an `earlier` job if there is one, submit the notebook, and notify about its job; after an error the form keeps its values. */
export async function showDialogAndSubmit(
  model: BatchModel,
  trans: TranslationBundle,
  path: string,
  open: (path: string) => void,
  showJobs: () => void,
  earlier?: IBatchValues
): Promise<void> {
  let form: IBatchForm;
  try {
    form = await model.requests.form(path);
  } catch (error) {
    await showErrorMessage(trans.__('This notebook can’t run as a batch job'), errorMessage(error));
    return;
  }
  let typed = earlier;
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
      notifySubmitted(await model.submit(value), value.output, trans, open, showJobs);
      return;
    } catch (error) {
      typed = body.values;
      problem = errorMessage(error);
    }
  }
}

function notifySubmitted(
  jobId: string,
  output: string,
  trans: TranslationBundle,
  open: (path: string) => void,
  showJobs: () => void
): void {
  Notification.success(trans.__('Job %1 is submitted: %2', jobId, output), {
    autoClose: 10_000,
    actions: [
      { label: trans.__('Show job'), callback: showJobs },
      {
        label: trans.__('Open output'),
        callback: () => {
          open(output);
        }
      }
    ]
  });
}
