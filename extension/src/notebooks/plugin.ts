import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import type { ServerConnection } from '@jupyterlab/services';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import { notebookIcon } from '@jupyterlab/ui-components';

import { CommandIDs } from '../common/commands';
import { errorMessage } from '../common/error-message';
import { requestJson } from '../common/request';

/** The notebook that takes in its cells the measurements that the panel shows. */
const MEASURE = 'measure-saturation';

/** A notebook that is shipped with Gipfel. */
interface IShippedNotebook {
  readonly name: string;
  /** Its first heading; empty without one. */
  readonly title: string;
}

/** The shipped notebooks, in the launcher and the command palette. */
export const notebooksPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:notebooks',
  description: 'Offers the notebooks that come with Gipfel in the launcher and the command palette.',
  autoStart: true,
  optional: [ICommandPalette, ILauncher, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    palette: ICommandPalette | null,
    launcher: ILauncher | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    addCommand(app, trans);
    void offerNotebooks(app, launcher, palette, trans);
  }
};

function addCommand(app: JupyterFrontEnd, trans: TranslationBundle): void {
  const { commands, serviceManager } = app;
  commands.addCommand(CommandIDs.openNotebook, {
    label: args => {
      const title = (args.title as string | undefined) ?? trans.__('Open the Measure-Saturation Notebook');
      // The cards of the launcher are small.
      return args.short === true ? (title.split(':')[0] ?? title) : title;
    },
    caption: args => {
      const title = (args.title as string | undefined) ?? '';
      return trans.__('%1 (copies this notebook into your directory, and opens the copy)', title).trim();
    },
    icon: notebookIcon,
    describedBy: {
      args: { type: 'object', properties: { name: { type: 'string' }, title: { type: 'string' } } }
    },
    execute: async args => {
      try {
        const name = (args.name as string | undefined) ?? MEASURE;
        const path = await copyNotebook(serviceManager.serverSettings, name);
        await commands.execute('docmanager:open', { path });
      } catch (error) {
        Notification.error(errorMessage(error), { autoClose: false });
      }
    }
  });
}

async function offerNotebooks(
  app: JupyterFrontEnd,
  launcher: ILauncher | null,
  palette: ICommandPalette | null,
  trans: TranslationBundle
): Promise<void> {
  const { serverSettings } = app.serviceManager;
  const category = trans.__('Gipfel');
  const found = await requestJson<{ notebooks: readonly IShippedNotebook[] }>(
    serverSettings,
    'notebooks'
  ).catch(() => null);
  (found?.notebooks ?? []).forEach(({ name, title }, place) => {
    const command = CommandIDs.openNotebook;
    const args = { name, title: title || name };
    launcher?.add({ command, args: { ...args, short: true }, category, rank: 2 + place });
    palette?.addItem({ command, args, category });
  });
}

/** Copy a shipped notebook to the user's directory, and return the path of the copy. */
async function copyNotebook(settings: ServerConnection.ISettings, name: string): Promise<string> {
  const route = `notebooks/${encodeURIComponent(name)}`;
  return (await requestJson<{ path: string }>(settings, route, 'POST', {})).path;
}
