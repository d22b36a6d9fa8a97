import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { HEAT_METRICS, ROW_ORDERS, type IJobDocument } from '../api';
import { Figure } from '../views/figures/figure';
import { Cluster } from './cluster';
import type { JobFigures } from './figures';
import { heatRows } from './heat';
import type { JobModel } from './model';
import { States } from './states';
import { Storage } from './storage';
import { chooseVerdict, Headline, SecurityLine } from './verdicts';

const MOST_PACES = 2;
/** Metrics that tell the pace of a training, by their usual names. */
const PACE = /tok|sample|image|step_s|step_ms|step_time|iter.*(time|_s)|throughput|per_s/i;

interface IProps {
  readonly model: JobModel;
  readonly figures: JobFigures;
  readonly trans: TranslationBundle;
}

/** The worst verdict, steps per second, the bands of all GPUs, and the heat map. */
export function Overview(props: IProps & { readonly onSecurity: () => void }): React.JSX.Element {
  const { model, figures, trans, onSecurity } = props;
  const { job } = model;
  const names = job === null ? [] : paceNames(job);
  const wanted = JSON.stringify(names);
  React.useEffect(() => {
    const pace = JSON.parse(wanted) as readonly string[];
    const drawn = [...(pace.length > 0 ? ['metrics'] : []), 'bands', 'heat', 'cluster', 'storage'];
    model.setWanted({ figures: drawn, names: pace, bands: ['SM_ACTIVE'] });
  }, [model, wanted]);
  const onLine = lineChooser(model);
  return (
    <>
      <Headline
        model={model}
        trans={trans}
        onShow={verdict => {
          chooseVerdict(model.selection, verdict);
        }}
      />
      <SecurityLine job={job} trans={trans} onDetails={onSecurity} />
      <States model={model} trans={trans} />
      {job !== null && <WorldLine job={job} trans={trans} />}
      <div className="jp-Gipfel-job-plots">
        {names.length > 0 && (
          <section aria-label={trans.__('Pace of the training')}>
            <Figure source={figures} name="metrics" label={names.join(', ')} trans={trans} onLine={onLine} />
          </section>
        )}
        <section aria-label={trans.__('SM activity')}>
          <Figure
            source={figures}
            name="bands"
            label={trans.__('SM activity of all GPUs: median, 10 to 90 %, lowest to highest, outliers')}
            trans={trans}
            onLine={onLine}
          />
        </section>
      </div>
      <Cluster {...props} />
      <Storage {...props} />
      <Heat {...props} />
    </>
  );
}

/** Return the metrics that show the pace, else the first ones. */
export function paceNames(job: IJobDocument): readonly string[] {
  const found = job.metrics.filter(name => PACE.test(name));
  return (found.length > 0 ? found : job.metrics).slice(0, MOST_PACES);
}

/** Return what selects the rank whose line is clicked: names of lines start with it. */
export function lineChooser(model: JobModel): (name: string, add: boolean) => void {
  return (name, add) => {
    const rank = /^rank (\d+)/.exec(name)?.[1];
    if (rank !== undefined) {
      model.selection.choose('rank', [rank], add);
    }
  };
}

/** World size, roles and missing ranks in one line; empty while no ranks are known. */
export function WorldLine(props: { job: IJobDocument; trans: TranslationBundle }): React.JSX.Element | null {
  const { job, trans } = props;
  const axes = Object.entries(job.axes).map(([axis, size]) => `${axis}=${size}`);
  if (job.world_size === null && job.ranks.length === 0) {
    return null;
  }
  return (
    <p className="jp-Gipfel-small jp-Gipfel-pad">
      {job.world_size === null
        ? trans.__('The number of ranks is unknown: nothing reported it yet.')
        : trans._n('%1 rank', '%1 ranks', job.world_size)}
      {axes.length > 0 && ` · ${axes.join(' × ')}`}
      {job.launch !== '' && ` · ${trans.__('launch %1', job.launch)}`}
    </p>
  );
}

function Heat(props: IProps): React.JSX.Element {
  const { model, figures, trans } = props;
  const rows = heatRows(model.figure('heat'));
  const choose = (row: number, add: boolean): void => {
    const ranks = rows?.ranks[row] ?? [];
    const uuid = rows?.uuids[row] ?? '';
    if (ranks.length > 0) {
      model.selection.choose('rank', ranks.map(String), add);
    } else {
      model.selection.choose('gpu', [uuid], add);
    }
  };
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('All GPUs over time')}>
      <HeatHead {...props} />
      <Figure
        source={figures}
        name="heat"
        label={trans.__('Heat map: a row per GPU, a column per time interval')}
        trans={trans}
        onRow={choose}
      />
      <p className="jp-Gipfel-small">
        {rows !== null &&
          rows.rows_per_bin > 1 &&
          trans.__('Each row is the worst of %1 GPUs. ', rows.rows_per_bin)}
        {trans.__('Click a row to select its rank everywhere, with Ctrl or Shift to add it.')}
      </p>
    </section>
  );
}

/** The choices of the heat map: its metric, and the order of its rows. */
function HeatHead(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  return (
    <div className="jp-Gipfel-viewHead">
      <h3>{trans.__('All GPUs over time')}</h3>
      <select
        className="jp-Gipfel-field"
        name="metric"
        aria-label={trans.__('Metric of the heat map')}
        value={model.metric}
        onChange={event => {
          model.setHeat(event.target.value, model.order);
        }}
      >
        {HEAT_METRICS.map(([metric, label]) => (
          <option key={metric} value={metric}>
            {label}
          </option>
        ))}
      </select>
      <label>
        {trans.__('rows by')}{' '}
        <select
          className="jp-Gipfel-field"
          name="order"
          value={model.order}
          onChange={event => {
            model.setHeat(model.metric, event.target.value);
          }}
        >
          {ROW_ORDERS.map(order => (
            <option key={order}>{order}</option>
          ))}
        </select>
      </label>
    </div>
  );
}
