import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  Dialog,
  InputDialog,
  Notification,
  ReactWidget,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { CommandIDs, NO_ARGUMENTS } from '../common/commands';
import { errorMessage } from '../common/error-message';
import { requestJson } from '../common/request';

/** The parts of a container that were saved, and those that could not be. */
interface ISaved {
  readonly directory: string;
  readonly installed: readonly string[];
  readonly notes: readonly string[];
  /** The command that builds an image from the saved directory. */
  readonly build: string;
}

/** Add the command that saves packages of pip and apt in this container as a directory that builds an equal image. */
export function addSaveEnvironment(
  app: JupyterFrontEnd,
  browser: IDefaultFileBrowser | null,
  trans: TranslationBundle
): void {
  app.commands.addCommand(CommandIDs.saveEnvironment, {
    label: trans.__('Save This Environment…'),
    caption: trans.__('Write a Containerfile with all that pip and apt installed in this container'),
    describedBy: NO_ARGUMENTS,
    execute: async () => {
      const { value } = await InputDialog.getText({
        title: trans.__('Save this environment'),
        label: trans.__('New directory, for a Containerfile, requirements.txt and wheels'),
        text: PathExt.join(browser?.model.path ?? '', 'environment'),
        okLabel: trans.__('Save')
      });
      if (value !== null && value.trim() !== '') {
        await save(app, value.trim(), trans);
        await browser?.model.refresh();
      }
    }
  });
}

async function save(app: JupyterFrontEnd, directory: string, trans: TranslationBundle): Promise<void> {
  const shown = Notification.emit(trans.__('Saving the environment…'), 'in-progress', { autoClose: false });
  try {
    const { serverSettings } = app.serviceManager;
    const saved = await requestJson<ISaved>(serverSettings, 'environment/save', 'POST', { directory });
    Notification.dismiss(shown);
    await showDialog({
      title: trans.__('The environment is saved in %1', saved.directory),
      body: ReactWidget.create(<Saved saved={saved} trans={trans} />),
      buttons: [Dialog.okButton({ label: trans.__('Close') })]
    });
  } catch (error) {
    Notification.dismiss(shown);
    await showErrorMessage(trans.__('The environment is not saved'), errorMessage(error));
  }
}

function Saved(props: { saved: ISaved; trans: TranslationBundle }): React.JSX.Element {
  const { saved, trans } = props;
  const count = saved.installed.length;
  return (
    <div className="jp-Gipfel-scan">
      <p>
        {count === 0
          ? trans.__('Nothing was installed since the container started: it builds the same image.')
          : trans._n('1 package was installed:', '%1 packages were installed:', count)}
      </p>
      {count > 0 && (
        <ul>
          {saved.installed.map(each => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      {saved.notes.length > 0 && (
        <>
          <p>⚠ {trans.__('Not saved:')}</p>
          <ul>
            {saved.notes.map(each => (
              <li key={each}>{each}</li>
            ))}
          </ul>
        </>
      )}
      <p>{trans.__('Build an image and an EDF of it in a terminal of the host:')}</p>
      <pre>{saved.build}</pre>
    </div>
  );
}
