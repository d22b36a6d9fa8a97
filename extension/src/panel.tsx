import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Header } from './header';
import { mountainIcon } from './icon';
import type { SaturationModel } from './model';
import { Saturation } from './saturation';

/** The sidebar: where the server runs, and how saturated its GPUs and host are. */
export class GipfelPanel extends ReactWidget {
  constructor(
    private readonly model: SaturationModel,
    private readonly trans: TranslationBundle,
    private readonly openNotebook: () => void
  ) {
    super();
    this.id = 'gipfel-panel';
    this.addClass('jp-Gipfel-panel');
    this.title.icon = mountainIcon;
    this.title.caption = trans.__('Gipfel: saturation of GPUs and host');
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  override dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this.model.setVisible(false);
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._onVisibility();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._onVisibility();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._onVisibility();
  }

  protected override render(): React.JSX.Element {
    return (
      <UseSignal signal={this.model.stateChanged}>
        {(): React.JSX.Element => (
          <>
            <Header run={this.model.run} trans={this.trans} />
            <Saturation
              status={this.model.status}
              figure={this.model.figure}
              connection={this.model.connection}
              samplesArrived={this.model.samplesArrived}
              busy={this.model.busy}
              problem={this.model.problem}
              trans={this.trans}
              onSimulate={() => void this.model.startSimulation()}
              onStop={() => void this.model.stopSimulation()}
              onReconnect={() => {
                this.model.reconnect();
              }}
              onNotebook={this.openNotebook}
            />
          </>
        )}
      </UseSignal>
    );
  }

  private readonly _onVisibility = (): void => {
    this.model.setVisible(this.isVisible && document.visibilityState === 'visible');
  };
}
