import * as React from 'react';

import { inLocalTime } from '../common/clock';
import { Notice } from '../common/notice';
import { Figure } from '../views/figures/figure';
import { AdviceList } from '../views/saturation/advice';
import { Score } from '../views/saturation/score';
import { StateLine } from '../views/saturation/state';
import { ENGLISH } from '../views/translation';
import { hostModel } from './host';
import { ACTIVITY } from './saturation-figures';
import { SaturationCellModel } from './saturation-model';

const PLOTS = [
  [ACTIVITY, 'lines'],
  ['score', 'score and losses'],
  ['heat', 'GPUs over time'],
  ['series', 'time series'],
  ['shares', 'where the time went']
] as const;

interface ICellProps {
  readonly model: SaturationCellModel;
}

function Saturation({ model }: ICellProps): React.JSX.Element {
  const { score } = model;
  return (
    <div className="jp-Gipfel-widget jp-Gipfel-saturation">
      <Status model={model} />
      {model.failed && <Notice error shape="✗" text="The plots could not be drawn. Reload this page." />}
      {model.still && (
        <Notice
          shape="○"
          text="This is a still image: for the live view open the notebook in JupyterLab with Gipfel’s panel."
        />
      )}
      {score && <Score score={score} trans={ENGLISH} />}
      {model.hasPlots && <Choice model={model} />}
      <Plots model={model} />
      {score && <AdviceList advice={score.advice} since={score.advice_effect?.lines ?? []} trans={ENGLISH} />}
    </div>
  );
}

/** The state, the interval of the samples, and the kernel's message. */
function Status({ model }: ICellProps): React.JSX.Element {
  const { state, status } = model;
  const known = (state === 'live' && (status.gpus ?? 0) > 0) || state === 'silent';
  return (
    <StateLine state={state} simulated={status.simulated === true} trans={ENGLISH}>
      {state === 'live' && ` every ${status.interval ?? 1} s`}
      {!known && status.message && ` · ${inLocalTime(status.message)}`}
    </StateLine>
  );
}

function Choice({ model }: ICellProps): React.JSX.Element {
  return (
    <select
      className="jp-Gipfel-field"
      aria-label="Which plot is shown"
      value={model.chosen}
      onChange={event => {
        model.choose(event.target.value);
      }}
    >
      {PLOTS.map(([name, label]) => (
        <option key={name} value={name}>
          {label}
        </option>
      ))}
    </select>
  );
}

/** The chosen plot; the lines take in new samples also while another one is shown. */
function Plots({ model }: ICellProps): React.JSX.Element | null {
  const { figures, chosen } = model;
  if (!figures) {
    return model.imageUrl === '' ? null : (
      <img className="jp-Gipfel-still" src={model.imageUrl} alt="GPU and host activity" />
    );
  }
  const label = PLOTS.find(([name]) => name === chosen)?.[1] ?? '';
  return (
    <>
      <div hidden={chosen !== ACTIVITY}>
        <Figure source={figures} name={ACTIVITY} label="GPU and host activity" trans={ENGLISH} />
      </div>
      {chosen !== ACTIVITY && (
        <Figure key={chosen} source={figures} name={chosen} label={label} trans={ENGLISH} />
      )}
    </>
  );
}

export default hostModel((kernel, changed) => new SaturationCellModel(kernel, changed), Saturation);
