import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IStateDB } from '@jupyterlab/statedb';

const KEY = '@gipfel/extension:panel-was-shown';
/** In a narrower window the panel would cover everything else. */
const NARROW_PX = 900;

/** Show a side panel once to a new user, and start its tour; afterwards JupyterLab restores its layout. */
export async function showAtFirstVisit(
  app: JupyterFrontEnd,
  state: IStateDB | null,
  id: string,
  startTour: () => void
): Promise<void> {
  await app.restored;
  if (state === null || window.innerWidth < NARROW_PX || (await state.fetch(KEY)) !== undefined) {
    return;
  }
  await state.save(KEY, true);
  app.shell.activateById(id);
  startTour();
}
