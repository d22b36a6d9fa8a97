import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IStateDB } from '@jupyterlab/statedb';

import { CommandIDs } from '../common/commands';

const KEY = '@gipfel/extension:panel-was-shown';
/** In a narrower window the panel would cover everything else. */
const NARROW_PX = 900;

/** Show the panel with its tour once to a new user; afterwards JupyterLab restores its layout. */
export async function showAtFirstVisit(app: JupyterFrontEnd, state: IStateDB | null): Promise<void> {
  await app.restored;
  if (state === null || window.innerWidth < NARROW_PX || (await state.fetch(KEY)) !== undefined) {
    return;
  }
  await state.save(KEY, true);
  await app.commands.execute(CommandIDs.takeTour);
}
