import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { WidgetTracker, type ICommandPalette } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { GAUGE_METRICS } from '../api';
import { CommandIDs } from '../common/commands';
import { mountainIcon } from '../common/icon';
import { GaugePanel, gaugeName } from './gauge';
import type { SaturationModel } from './model';

function metricOf(args: ReadonlyPartialJSONObject): string {
  return typeof args.metric === 'string' ? args.metric : '';
}

/** Add the command that opens one metric of all GPUs in the main area, which a reload restores. */
export function addGauges(
  app: JupyterFrontEnd,
  model: SaturationModel,
  trans: TranslationBundle,
  palette: ICommandPalette | null,
  restorer: ILayoutRestorer | null
): void {
  const tracker = new WidgetTracker<GaugePanel>({ namespace: 'gipfel-gauges' });
  const command = CommandIDs.openGauge;
  const known = GAUGE_METRICS.map(([metric]) => metric);
  app.commands.addCommand(command, {
    label: args =>
      args.palette === true
        ? trans.__('Open a Tab with %1', gaugeName(metricOf(args), trans))
        : gaugeName(metricOf(args), trans),
    caption: trans.__('Show one metric of all GPUs in the main area'),
    icon: mountainIcon,
    describedBy: {
      args: {
        type: 'object',
        properties: { metric: { type: 'string', enum: known }, palette: { type: 'boolean' } },
        required: ['metric']
      }
    },
    execute: async args => {
      const metric = metricOf(args);
      if (!known.includes(metric)) {
        throw new Error(`There is no gauge '${metric}'. Choose one of ${known.join(', ')}.`);
      }
      const gauge = tracker.find(each => each.metric === metric) ?? new GaugePanel(model, metric, trans);
      if (!gauge.isAttached) {
        app.shell.add(gauge, 'main', { mode: tracker.size > 0 ? 'split-bottom' : 'tab-after' });
        await tracker.add(gauge);
      }
      app.shell.activateById(gauge.id);
    }
  });
  for (const metric of known) {
    palette?.addItem({ command, category: trans.__('Gipfel'), args: { metric, palette: true } });
  }
  void restorer?.restore(tracker, {
    command,
    args: gauge => ({ metric: gauge.metric }),
    name: gauge => gauge.metric
  });
}
