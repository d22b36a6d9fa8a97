import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { detailsOf } from '../views/launch/document';
import type { ILaunchActions } from './actions';
import { ListedLaunch } from './launch';
import type { LaunchesModel } from './model';

/** The server's view of a launch in a saved cell, without a kernel. */
export class SavedLaunch extends ReactWidget {
  /** @param model The model of this launch only. */
  constructor(
    private readonly model: LaunchesModel,
    private readonly trans: TranslationBundle,
    private readonly actions: ILaunchActions
  ) {
    super();
    this.addClass('jp-Gipfel-savedLaunch');
    const [launch] = model.items ?? [];
    if (launch !== undefined) {
      // What the ranks printed is the output of the cell.
      model.openLog(launch.id);
    }
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  override dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this.model.setVisible(false);
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._onVisibility();
  }

  protected override onBeforeDetach(message: Message): void {
    this.model.setVisible(false);
    super.onBeforeDetach(message);
  }

  protected override render(): React.JSX.Element {
    const { model, trans, actions } = this;
    return (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => (
          <div className="jp-Gipfel-widget jp-Gipfel-launches">
            {model.items?.map(launch => (
              <ListedLaunch
                key={launch.id}
                launch={launch}
                details={detailsOf(launch)}
                model={model}
                trans={trans}
                actions={actions}
              />
            ))}
          </div>
        )}
      </UseSignal>
    );
  }

  private readonly _onVisibility = (): void => {
    this.model.setVisible(this.isAttached && document.visibilityState === 'visible');
  };
}
