import type { NotebookPanel } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';

const CELL = 'from gipfel_widgets import LaunchCell\n\nLaunchCell()';

/** Number of attempts to run a cell: JupyterLab drops a run while it connects to a new kernel. */
const TRIES = 3;
const PAUSE_MS = 2_000;

/** Open a new notebook with a launch cell, and run that cell. */
export async function openLaunchNotebook(commands: CommandRegistry): Promise<void> {
  const panel = (await commands.execute('notebook:create-new', { kernelName: 'python3' })) as
    NotebookPanel | undefined;
  if (panel !== undefined) {
    await panel.context.ready;
    panel.content.activeCell?.model.sharedModel.setSource(CELL);
    await runFirstCell(commands, panel);
  }
}

/** Run the only cell of a new notebook as soon as its kernel responds. */
async function runFirstCell(commands: CommandRegistry, panel: NotebookPanel): Promise<void> {
  const { sessionContext } = panel.context;
  await sessionContext.ready;
  await sessionContext.session?.kernel?.info;
  const isRun = (): boolean => {
    const cell = panel.content.activeCell?.model.toJSON();
    return typeof cell?.execution_count === 'number';
  };
  for (let tries = 0; tries < TRIES && !isRun(); tries++) {
    if (tries > 0) {
      await new Promise(resolve => window.setTimeout(resolve, PAUSE_MS));
    }
    // It resolves when the cell has run, or immediately if the cell was dropped.
    await commands.execute('notebook:run-cell');
  }
}
