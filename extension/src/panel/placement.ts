import type { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import type { IStateDB } from '@jupyterlab/statedb';
import type { Widget } from '@lumino/widgets';

import { CommandIDs } from '../common/commands';
import type { GipfelPanel } from './panel';

const KEY = '@gipfel/extension:panel-was-shown';
/** In a narrower window, the main area has no room between two open sidebars. */
const ONE_SIDEBAR_PX = 900;
/** In a narrower window, such as a phone's or one at 400 % zoom, it has no room beside a single one. */
const NO_SIDEBAR_PX = 640;

/** Show the panel with its tour once to a new user; afterwards JupyterLab restores its layout. */
export async function showAtFirstVisit(app: JupyterFrontEnd, state: IStateDB | null): Promise<void> {
  await app.restored;
  if (state === null || window.innerWidth < NO_SIDEBAR_PX || (await state.fetch(KEY)) !== undefined) {
    return;
  }
  await state.save(KEY, true);
  await app.commands.execute(CommandIDs.takeTour);
}

/**
 * Make room for what Gipfel shows in a narrow window.
 *
 * Where there is none for two sidebars, the left one is collapsed when the panel is shown. Where there is none
 * for any, both are, and the panel opens in the main area instead. Users can open a sidebar again: this happens
 * when something of Gipfel is shown, when the window becomes narrow, or, for the left one, when the main area
 * shows something else.
 */
export async function keepRoom(app: JupyterFrontEnd, shell: ILabShell, panel: GipfelPanel): Promise<void> {
  await app.restored;
  // The class of all that Gipfel adds to the main area.
  const isOwn = (widget: Widget | null): boolean => widget?.node.className.includes('jp-Gipfel') === true;
  const fit = (isAsked = false): void => {
    if (window.innerWidth < NO_SIDEBAR_PX) {
      const wasOpen = panel.isVisible;
      shell.collapseLeft();
      shell.collapseRight();
      // Unless the user asks for it, the panel does not cover the job page.
      if (wasOpen && (isAsked || !isOwn(shell.currentWidget))) {
        void app.commands.execute(CommandIDs.openWide);
      }
    } else if (window.innerWidth < ONE_SIDEBAR_PX && panel.isVisible) {
      shell.collapseLeft();
    }
  };
  panel.shown.connect(() => {
    fit(true);
  });
  shell.currentChanged.connect((_, { newValue }) => {
    const hasNoRoom = window.innerWidth < NO_SIDEBAR_PX;
    if (hasNoRoom && isOwn(newValue)) {
      fit();
    } else if (hasNoRoom || (window.innerWidth < ONE_SIDEBAR_PX && panel.isVisible)) {
      // The file browser, from which it may have been opened, would leave it a few pixels.
      shell.collapseLeft();
    }
  });
  let before = window.innerWidth;
  window.addEventListener('resize', () => {
    const crossed = [ONE_SIDEBAR_PX, NO_SIDEBAR_PX].some(each => before >= each && window.innerWidth < each);
    before = window.innerWidth;
    if (crossed) {
      fit();
    }
  });
  fit();
}
