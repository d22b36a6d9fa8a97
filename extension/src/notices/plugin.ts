import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../common/commands';
import { openReport } from '../common/report';
import { serverChanges } from '../common/server-changes';
import { IGipfelLaunches, IGipfelPanel } from '../tokens';
import { JobNotices, type IJobActions } from './job-notices';
import { LifetimeModel } from './model';
import { LifetimeNotices } from './notices';
import { LifetimeRequests } from './requests';

const SEEN_KEY = '@gipfel/extension:job-events';
const LAUNCH = 'launch:';

/** Notifications before the end of this server, and about the user's jobs. */
export const noticesPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:notices',
  description:
    'Warns before the time of this server ends or it is stopped as idle, and reports what happened to jobs.',
  autoStart: true,
  // The panel shows the remaining time, so it is refreshed after an extension; notices work without it.
  optional: [IGipfelPanel, IGipfelLaunches, IStateDB, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    panel: IGipfelPanel | null,
    launches: IGipfelLaunches | null,
    state: IStateDB | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    const model = new LifetimeModel(
      new LifetimeRequests(serverSettings),
      serverChanges(serverSettings).of('lifetime')
    );
    new LifetimeNotices(model, trans, () => void panel?.refreshRun());
    void fetchSeen(state).then(seen => {
      new JobNotices(model, trans, actionsOf(app, launches, state), seen);
      model.start();
    });
  }
};

async function fetchSeen(state: IStateDB | null): Promise<readonly string[] | null> {
  const seen = await state?.fetch(SEEN_KEY).catch(() => undefined);
  return Array.isArray(seen) ? seen.map(String) : null;
}

function actionsOf(
  app: JupyterFrontEnd,
  launches: IGipfelLaunches | null,
  state: IStateDB | null
): IJobActions {
  return {
    openWorkload: id => void openWorkload(app, launches, id),
    openReport: path => {
      openReport(app.serviceManager.serverSettings, path);
    },
    saveSeen: keys => void state?.save(SEEN_KEY, [...keys]).catch(() => undefined)
  };
}

/** Open the view of a launch in the main area; for other workloads, and a launch that is gone, the panel's list. */
async function openWorkload(
  app: JupyterFrontEnd,
  launches: IGipfelLaunches | null,
  id: string
): Promise<void> {
  const name = id.startsWith(LAUNCH) ? id.slice(LAUNCH.length) : '';
  const viewId = `gipfel-workload-${name}`;
  if (name !== '' && [...app.shell.widgets('main')].some(each => each.id === viewId)) {
    app.shell.activateById(viewId);
    return;
  }
  const view = name === '' ? null : await launches?.createView(name);
  if (view) {
    view.id = viewId;
    view.title.label = name;
    view.title.closable = true;
    app.shell.add(view, 'main');
    app.shell.activateById(view.id);
  } else if (app.commands.hasCommand(CommandIDs.openPanel)) {
    await app.commands.execute(CommandIDs.openPanel, { section: 'workloads' });
  }
}
