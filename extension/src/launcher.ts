import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { ILauncher } from '@jupyterlab/launcher';
import type { TranslationBundle } from '@jupyterlab/translation';

import { answerOf } from './answer';
import { CommandIDs } from './commands';
import { NEW_LAUNCH } from './launches/commands';

/** A notebook that comes with Gipfel. */
interface IShippedNotebook {
  readonly name: string;
  /** Its first heading; empty where it has none. */
  readonly title: string;
}

/** Add the launcher's section "Gipfel": the panel, a new launch, and every notebook that comes with Gipfel. */
export async function addToLauncher(
  app: JupyterFrontEnd,
  launcher: ILauncher | null,
  palette: ICommandPalette | null,
  trans: TranslationBundle
): Promise<void> {
  const category = trans.__('Gipfel');
  launcher?.add({ command: CommandIDs.openPanel, args: { short: true }, category, rank: 0 });
  launcher?.add({ command: NEW_LAUNCH, category, rank: 1 });
  const { serverSettings } = app.serviceManager;
  // Without an answer the other two are there all the same.
  const found = await answerOf<{ notebooks: readonly IShippedNotebook[] }>(serverSettings, 'notebooks').catch(
    () => null
  );
  (found?.notebooks ?? []).forEach(({ name, title }, place) => {
    const command = CommandIDs.openNotebook;
    const args = { name, title: title || name };
    launcher?.add({ command, args: { ...args, short: true }, category, rank: 2 + place });
    palette?.addItem({ command, args, category });
  });
}
