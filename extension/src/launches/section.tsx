import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ISection } from '../tokens';
import { workSection } from '../work/section';
import type { ILaunchActions } from './actions';
import { Launch } from './launch';
import type { LaunchesModel } from './model';

/** Create the section that lists launches. */
export function launchesSection(
  model: LaunchesModel,
  trans: TranslationBundle,
  actions: ILaunchActions
): ISection {
  return workSection(model, trans, {
    id: 'launches',
    title: trans.__('Launches'),
    loadingText: trans.__('Loading your launches…'),
    emptyText: trans.__('None yet: train on many GPUs from a cell with %%%%launch or LaunchCell().'),
    keyOf: launch => launch.id,
    render: launch => <Launch launch={launch} model={model} trans={trans} actions={actions} />,
    footer: (
      <div className="jp-Gipfel-actions">
        <button className="jp-Gipfel-button" onClick={actions.newLaunch}>
          {trans.__('New launch …')}
        </button>
      </div>
    )
  });
}
