import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../notice';
import type { ISection } from '../section';
import type { ILaunchActions } from './actions';
import { Launch } from './launch';
import type { LaunchesModel } from './model';

/** The panel's list of launches. */
export function launchesSection(
  model: LaunchesModel,
  trans: TranslationBundle,
  actions: ILaunchActions
): ISection {
  return {
    id: 'launches',
    title: trans.__('Launches'),
    Summary: (): React.JSX.Element => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <span role="status">{summary(model, trans)}</span>}
      </UseSignal>
    ),
    Body: (): React.JSX.Element => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <LaunchList model={model} trans={trans} actions={actions} />}
      </UseSignal>
    ),
    setVisible: visible => {
      model.setVisible(visible);
    }
  };
}

function summary(model: LaunchesModel, trans: TranslationBundle): string {
  const runs = (model.launches ?? []).filter(each => each.phase !== 'ended').length;
  return runs > 0 ? trans._n('%1 runs', '%1 run', runs) : '';
}

function LaunchList(props: {
  model: LaunchesModel;
  trans: TranslationBundle;
  actions: ILaunchActions;
}): React.JSX.Element {
  const { model, trans, actions } = props;
  return (
    <div className="jp-Gipfel-launches">
      {model.error && <Notice shape="✗" text={model.error} error />}
      {model.launches === null && !model.error && <p>{trans.__('Asking for your launches …')}</p>}
      {model.launches?.length === 0 && (
        <p>{trans.__('None yet: train on many GPUs from a cell with %%launch or LaunchCell().')}</p>
      )}
      {model.launches?.map(launch => (
        <Launch key={launch.id} launch={launch} model={model} trans={trans} actions={actions} />
      ))}
      <div className="jp-Gipfel-actions">
        <button className="jp-mod-styled jp-mod-minimal" onClick={actions.newLaunch}>
          {trans.__('New launch …')}
        </button>
      </div>
    </div>
  );
}
