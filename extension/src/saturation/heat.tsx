import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { HEAT_METRICS } from '../api';
import { Figure } from '../views/figures/figure';
import type { SaturationModel } from './model';

/** Heat map of all GPUs of the job over time; a click on a row shows the plots of its GPU. */
export function Heat(props: { model: SaturationModel; trans: TranslationBundle }): React.JSX.Element {
  const { model, trans } = props;
  const choose = (row: number): void => {
    const gpu = model.selection.gpus[row];
    if (gpu) {
      model.selection.revealGpu(gpu.uuid);
    }
  };
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('GPUs over time')}>
      <div className="jp-Gipfel-viewHead">
        <h3>{trans.__('GPUs over time')}</h3>
        <label>
          <span className="jp-Gipfel-hidden">{trans.__('Metric of the heat map')}</span>
          <select
            className="jp-Gipfel-field"
            value={model.selection.metric}
            onChange={event => {
              model.selection.setMetric(event.target.value);
            }}
          >
            {HEAT_METRICS.map(([metric, label]) => (
              <option key={metric} value={metric}>
                {label}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Figure
        source={model.figures}
        name="heat"
        label={trans.__('Heat map: a row per GPU, a column per time interval')}
        trans={trans}
        onRow={choose}
      />
      <p className="jp-Gipfel-small">
        {trans.__(
          'Click a row, or select a GPU below, to see its SM, tensor core, DRAM and link activity, clock and power.'
        )}
      </p>
    </section>
  );
}
