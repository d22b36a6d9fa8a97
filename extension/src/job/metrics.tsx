import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { HEAT_METRICS } from '../api';
import { Figure, type IFigureSource } from '../views/figures/figure';
import type { JobFigures } from './figures';
import { MOST_NAMES } from './location';
import type { JobModel } from './model';
import { lineChooser } from './overview';
import { States } from './states';

interface IProps {
  readonly model: JobModel;
  readonly figures: JobFigures;
  readonly trans: TranslationBundle;
}

const FIRST_NAMES = 3;
const FIRST_BANDS = ['SM_ACTIVE', 'PIPE_TENSOR_ACTIVE', 'DRAM_ACTIVE', 'POWER_USAGE'];

/** What ranks logged, and what GPUs measured: bands of all, and a line for each selected rank. */
export function Metrics(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const known = model.job?.metrics ?? [];
  const { view } = model.selection;
  const bands = view.bands ?? FIRST_BANDS;
  const names = (view.names ?? known.slice(0, FIRST_NAMES)).filter(name => known.includes(name));
  const wanted = JSON.stringify({
    figures: [...(names.length > 0 ? ['metrics'] : []), ...(bands.length > 0 ? ['bands'] : []), 'roofline'],
    names,
    bands
  });
  React.useEffect(() => {
    model.setWanted(JSON.parse(wanted) as Parameters<JobModel['setWanted']>[0]);
  }, [model, wanted]);
  return (
    <>
      <States model={model} trans={trans} />
      <Hint model={model} trans={trans} />
      <div className="jp-Gipfel-job-plots">
        <Group
          {...props}
          title={trans.__('Metrics of the training')}
          name="metrics"
          known={known.map(name => [name, name])}
          chosen={names}
          most={MOST_NAMES}
          empty={trans.__('No metric was logged. Call gipfel_widgets.log(step=…, loss=…) on each rank.')}
          onChosen={chosen => {
            model.selection.setView({ names: chosen });
          }}
        />
        <Group
          {...props}
          title={trans.__('Metrics of the GPUs')}
          name="bands"
          known={HEAT_METRICS}
          chosen={bands}
          most={HEAT_METRICS.length}
          empty=""
          onChosen={chosen => {
            model.selection.setView({ bands: chosen });
          }}
        />
        <Roofline {...props} />
      </div>
    </>
  );
}

/** Arithmetic rate against bytes, by GPU and over time. Its axes are not times, so it has no cursor and no zoom. */
function Roofline(props: IProps): React.JSX.Element {
  const { model, figures, trans } = props;
  const source = React.useMemo<IFigureSource>(
    () => ({
      loadPlotly: figures.loadPlotly,
      queue: figures.queue,
      marked: null,
      figure: name => model.figure(name),
      follow: (name, follower) => figures.follow(name, follower),
      zoom: () => undefined
    }),
    [model, figures]
  );
  const meta = model.figure('roofline')?.layout.meta as { readonly sources?: readonly string[] } | undefined;
  const label = trans.__('Roofline: arithmetic rate against operations for each byte');
  return (
    <section aria-label={trans.__('Roofline')}>
      <Figure source={source} name="roofline" label={label} trans={trans} />
      <p className="jp-Gipfel-small jp-Gipfel-pad">
        {trans.__(
          'Tensor cores count as dense bf16: with FP8 they compute twice as much, with TF32 half. Below the slope, memory limits; below the flat part, arithmetic does.'
        )}
      </p>
      {meta?.sources?.map(each => (
        <p key={each} className="jp-Gipfel-small jp-Gipfel-pad">
          {each}
        </p>
      ))}
    </section>
  );
}

/** Bytes, pauses and errors of each NIC, a line for each of up to eight; a click selects a line's NIC. */
export function Nics(props: IProps): React.JSX.Element {
  const { model, figures, trans } = props;
  React.useEffect(() => {
    model.setWanted({ figures: ['nics'], names: [], bands: [] });
  }, [model]);
  return (
    <section aria-label={trans.__('NICs over time')}>
      {model.figure('nics') === null ? (
        <p className="jp-Gipfel-pad jp-Gipfel-small">
          {trans.__('No NIC of Slingshot, InfiniBand or RoCE was recorded.')}
        </p>
      ) : (
        <Figure
          source={figures}
          name="nics"
          label={trans.__('Bytes received and sent, pauses and errors of each NIC')}
          trans={trans}
          onLine={(name, add) => {
            const nic = /^[^\s@]+@\S+/.exec(name)?.[0];
            if (nic !== undefined) {
              model.selection.choose('nic', [nic], add);
            }
          }}
        />
      )}
    </section>
  );
}

interface IGroupProps extends IProps {
  readonly title: string;
  /** The name of the figure. */
  readonly name: string;
  /** Metrics and their labels. */
  readonly known: readonly (readonly [string, string])[];
  readonly chosen: readonly string[];
  readonly most: number;
  /** What to do if no metric is known. */
  readonly empty: string;
  readonly onChosen: (names: readonly string[]) => void;
}

function Group(props: IGroupProps): React.JSX.Element {
  const { model, figures, trans, title, name, known, chosen, empty } = props;
  return (
    <section aria-label={title}>
      <Choices {...props} />
      {model.job !== null && known.length === 0 && <p className="jp-Gipfel-pad">{empty}</p>}
      {chosen.length > 0 && (
        <Figure source={figures} name={name} label={title} trans={trans} onLine={lineChooser(model)} />
      )}
    </section>
  );
}

function Hint(props: Pick<IProps, 'model' | 'trans'>): React.JSX.Element {
  const { model, trans } = props;
  const { selection } = model;
  return (
    <p className="jp-Gipfel-small jp-Gipfel-pad">
      {selection.some
        ? trans._n(
            'The selected rank is drawn beside the bands of all.',
            'Of the %1 selected ranks up to eight are drawn as lines, else their median, beside the bands of all.',
            selection.ranks.length
          )
        : trans.__(
            'Median, 10 to 90 % and lowest to highest of all ranks, with at most eight outliers by name.'
          )}
    </p>
  );
}

function Choices(props: IGroupProps): React.JSX.Element {
  const { title, known, chosen, most, onChosen } = props;
  return (
    <fieldset className="jp-Gipfel-job-choices">
      <legend>{title}</legend>
      {known.map(([name, label]) => (
        <label key={name} className="jp-Gipfel-check">
          <input
            type="checkbox"
            checked={chosen.includes(name)}
            disabled={chosen.length >= most && !chosen.includes(name)}
            onChange={event => {
              onChosen(event.target.checked ? [...chosen, name] : chosen.filter(each => each !== name));
            }}
          />
          {label}
        </label>
      ))}
    </fieldset>
  );
}
