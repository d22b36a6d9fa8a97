import * as React from 'react';

import type { FileUrl } from '../views/launch/files';
import { Launch } from '../views/launch/launch';
import { ENGLISH } from '../views/translation';
import { hostModel } from './host';
import { LaunchCellModel } from './launch-model';

/** Functions that the labextension offers to widgets on its page; undefined on other pages. */
interface IOffered {
  readonly openNotebook: ((id: string) => void) | undefined;
  readonly openJob: ((id: string, run: string) => void) | undefined;
  readonly fileUrl: FileUrl | undefined;
}

function LaunchCell({ model }: { readonly model: LaunchCellModel }): React.JSX.Element | null {
  const { launch } = model;
  const { openNotebook, openJob, fileUrl } = offered();
  if (launch.phase === '') {
    return null;
  }
  return (
    <div className="jp-Gipfel-widget jp-Gipfel-launches">
      {model.error && <p role="alert">✗ {model.error}</p>}
      <Launch
        launch={launch}
        details={model.details}
        controls={{
          busy: model.stopping,
          stopping: model.stopping,
          stop: () => {
            model.stop();
          },
          ...(openNotebook && {
            openNotebook: () => {
              openNotebook(launch.id);
            }
          }),
          ...(openJob && {
            openJob: () => {
              openJob(launch.id, launch.run);
            }
          })
        }}
        // There is no log before the launch has started.
        log={launch.id === '' ? undefined : logOf(model)}
        fileUrl={fileUrl}
        trans={ENGLISH}
      />
    </div>
  );
}

function logOf(model: LaunchCellModel): React.ComponentProps<typeof Launch>['log'] {
  return {
    end: model.log,
    rank: model.rank,
    chooseRank: rank => {
      model.chooseRank(rank);
    },
    flight: model.flight
  };
}

function offered(): IOffered {
  const page = globalThis as unknown as Record<symbol, unknown>;
  return {
    openNotebook: page[Symbol.for('gipfel.openLaunch')] as IOffered['openNotebook'],
    openJob: page[Symbol.for('gipfel.openJob')] as IOffered['openJob'],
    fileUrl: page[Symbol.for('gipfel.launchFile')] as FileUrl | undefined
  };
}

export default hostModel((kernel, changed) => new LaunchCellModel(kernel, changed), LaunchCell);
