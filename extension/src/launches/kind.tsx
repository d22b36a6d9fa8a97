import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILaunch } from '../api';
import type { IWorkloadKind } from '../tokens';
import type { ILaunchActions } from './actions';
import { ListedLaunch } from './launch';
import type { LaunchesModel } from './model';

/** Create the workload kind of launches. */
export function launchKind(
  model: LaunchesModel,
  trans: TranslationBundle,
  actions: ILaunchActions
): IWorkloadKind<ILaunch> {
  return {
    id: 'launch',
    title: trans.__('launches'),
    emptyText: trans.__('Train on many GPUs from a cell with %%%%launch or LaunchCell().'),
    workloads: model,
    keyOf: launch => launch.id,
    createdMs: launch => launch.created_ns / 1e6,
    render: launch => (
      <div className="jp-Gipfel-launches">
        <ListedLaunch launch={launch} model={model} trans={trans} actions={actions} />
      </div>
    ),
    Footer: () => (
      <div className="jp-Gipfel-actions">
        <button className="jp-Gipfel-button" onClick={actions.newLaunch}>
          {trans.__('New launch …')}
        </button>
      </div>
    )
  };
}
