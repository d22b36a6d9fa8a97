import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILaunch } from '../api';
import type { ILaunchDetails } from '../views/launch/document';
import { Launch, type ILaunchControls } from '../views/launch/launch';
import type { ILaunchLog } from '../views/launch/log';
import type { ILaunchActions } from './actions';
import type { LaunchesModel } from './model';

interface IListedLaunchProps {
  readonly launch: ILaunch;
  /** Shown where there is room for them. */
  readonly details?: ILaunchDetails;
  readonly model: LaunchesModel;
  readonly trans: TranslationBundle;
  readonly actions: ILaunchActions;
}

/** A launch of the model, with the actions of JupyterLab. */
export function ListedLaunch(props: IListedLaunchProps): React.JSX.Element {
  const { launch, details, model, trans } = props;
  return (
    <Launch
      launch={launch}
      {...(details && { details })}
      controls={controlsOf(props)}
      log={model.openLogId === launch.id ? openLogOf(launch, model) : undefined}
      fileUrl={model.requests.fileUrl.bind(model.requests)}
      updatedMs={model.updatedMs}
      trans={trans}
    />
  );
}

function controlsOf({ launch, model, actions }: IListedLaunchProps): ILaunchControls {
  const { id } = launch;
  const { openJob } = actions;
  return {
    ...(openJob === undefined
      ? {}
      : {
          openJob: (): void => {
            openJob(id, launch.run);
          }
        }),
    busy: model.isBusy(id),
    toggleLog: () => {
      model.openLog(model.openLogId === id ? '' : id);
    },
    stop: () => void model.stop(id),
    openNotebook: () => {
      actions.openNotebook(id);
    },
    rerun: () => void model.rerun(id)
  };
}

function openLogOf(launch: ILaunch, model: LaunchesModel): ILaunchLog {
  return {
    end: model.log,
    rank: model.rank,
    chooseRank: rank => {
      model.openLog(launch.id, rank);
    },
    flight: model.flight
  };
}
