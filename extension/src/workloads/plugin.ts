import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import type { ILimits } from '../api';
import { requestJson } from '../common/request';
import { serverChanges } from '../common/server-changes';
import { IGipfelPanel, IGipfelWorkloads } from '../tokens';
import { WorkloadList } from './list';
import { otherKind, OtherWorkloadsModel } from './other';
import { workloadsSection } from './section';

/** The list of workloads, to which other plugins add their kinds. */
export const workloadsPlugin: JupyterFrontEndPlugin<IGipfelWorkloads> = {
  id: '@gipfel/extension:workloads',
  description: 'Lists workloads of all kinds, such as launches and batch notebooks, with a filter by kind.',
  autoStart: true,
  provides: IGipfelWorkloads,
  requires: [IGipfelPanel],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, panel: IGipfelPanel, translator: ITranslator | null): IGipfelWorkloads => {
    const list = new WorkloadList();
    const trans = (translator ?? nullTranslator).load('gipfel');
    const fetchLimits = (): Promise<ILimits> => requestJson(app.serviceManager.serverSettings, 'quota');
    panel.addSection(workloadsSection(list, trans, fetchLimits), { rank: 200 });
    return list;
  }
};

/** Workloads of the kinds that have no view of their own. */
export const otherWorkloadsPlugin: JupyterFrontEndPlugin<void> = {
  id: '@gipfel/extension:other-workloads',
  description: 'Lists workloads of kinds that other packages install, with their logs.',
  autoStart: true,
  requires: [IGipfelWorkloads],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, workloads: IGipfelWorkloads, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('gipfel');
    const { serverSettings } = app.serviceManager;
    workloads.addKind(
      otherKind(new OtherWorkloadsModel(serverSettings, serverChanges(serverSettings).of('other')), trans)
    );
  }
};
