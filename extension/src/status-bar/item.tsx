import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IGpuActivity } from '../api';
import { mountainIcon } from '../common/icon';
import type { ActivityModel } from './model';

/** The status bar item with the current activity of the GPUs; clicking it opens the panel. */
export class ActivityItem extends ReactWidget {
  constructor(
    private readonly model: ActivityModel,
    private readonly trans: TranslationBundle,
    private readonly openPanel: () => void
  ) {
    super();
    this.addClass('jp-Gipfel-statusItem');
  }

  protected override render(): React.JSX.Element {
    const { model, trans } = this;
    return (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element | null =>
          model.activity && (
            <button title={titleOf(model.activity, trans)} onClick={this.openPanel}>
              <mountainIcon.react tag="span" elementSize="small" aria-hidden="true" />
              {textOf(model.activity, trans)}
            </button>
          )
        }
      </UseSignal>
    );
  }
}

/** Return the text of the item, such as `SM 52 %`; a dash without a recent sample. */
export function textOf(activity: IGpuActivity, trans: TranslationBundle): string {
  const { share, metric, simulated } = activity;
  const name = metric === 'SM_ACTIVE' || metric === '' ? trans.__('SM') : trans.__('GPU');
  const value = share === null ? '–' : `${Math.round(100 * share)}\u00a0%`;
  return `${name} ${value}${simulated ? ` (${trans.__('simulated')})` : ''}`;
}

function titleOf(activity: IGpuActivity, trans: TranslationBundle): string {
  const gpus = trans._n('%1 GPU', '%1 GPUs', activity.gpus);
  return activity.share === null
    ? trans.__('No recent sample of %1. Open the Gipfel panel.', gpus)
    : trans.__('Activity of %1 in the last 10 s. Open the Gipfel panel.', gpus);
}
