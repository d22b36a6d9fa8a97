import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { WidgetTracker, type ICommandPalette } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import { MimeData, type ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Drag } from '@lumino/dragdrop';
import type { Message } from '@lumino/messaging';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';

import { GAUGE_METRICS } from '../api';
import { CommandIDs } from '../common/commands';
import { mountainIcon } from '../common/icon';
import { Figure } from '../views/figures/figure';
import type { SaturationModel } from './model';
import { Notices, StatusLine } from './status';

/** MIME type with which the main area accepts a dropped widget. */
const FACTORY = 'application/vnd.lumino.widget-factory';
/** A pointer that is pressed and moves fewer pixels is a click, not a drag. */
const DRAG_PIXELS = 5;

/** Starts to drag the gauge of a metric into the main area, once the pressed pointer has moved. */
export type GaugeDrag = (metric: string, press: PointerEvent) => void;

/** One metric of all GPUs in the main area: a line per GPU, of the same run and time as the panel. */
export class GaugePanel extends ReactWidget {
  constructor(
    private readonly model: SaturationModel,
    readonly metric: string,
    private readonly trans: TranslationBundle
  ) {
    super();
    this.id = `gipfel-gauge-${metric}`;
    this.addClass('jp-Gipfel-panel');
    this.addClass('jp-Gipfel-gauge');
    this.title.icon = mountainIcon;
    this.title.label = gaugeName(metric, trans);
    this.title.closable = true;
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  override dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._set(false);
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
    const { model, metric, trans } = this;
    return (
      <div className="jp-Gipfel-saturation">
        <div className="jp-Gipfel-summary">
          <UseSignal signal={model.stateChanged}>
            {(): React.JSX.Element => <StatusLine model={model} trans={trans} />}
          </UseSignal>
        </div>
        <UseSignal signal={model.stateChanged}>
          {(): React.JSX.Element => <Notices model={model} trans={trans} />}
        </UseSignal>
        <Figure
          source={model.figures}
          name={`gauge/${metric}`}
          label={trans.__('%1 of each GPU over time', gaugeName(metric, trans))}
          trans={trans}
        />
      </div>
    );
  }

  private _set(visible: boolean): void {
    this.model.setVisible(visible, this);
    this.model.selection.setGauge(this.metric, this, visible);
  }

  private readonly _onVisibility = (): void => {
    this._set(this.isVisible && document.visibilityState === 'visible');
  };
}

/** Return the name of a metric of GPUs, such as `GPU memory`. */
export function gaugeName(metric: string, trans: TranslationBundle): string {
  const label = GAUGE_METRICS.find(([name]) => name === metric)?.[1] ?? metric;
  return trans.__('GPU %1', label);
}

function metricOf(args: ReadonlyPartialJSONObject): string {
  return typeof args.metric === 'string' ? args.metric : '';
}

/** Add the command that opens a metric of all GPUs in the main area, restored at a reload; return a `GaugeDrag`. */
export function addGauges(
  app: JupyterFrontEnd,
  model: SaturationModel,
  trans: TranslationBundle,
  palette: ICommandPalette | null,
  restorer: ILayoutRestorer | null
): GaugeDrag {
  const tracker = new WidgetTracker<GaugePanel>({ namespace: 'gipfel-gauges' });
  const command = CommandIDs.openGauge;
  const known = GAUGE_METRICS.map(([metric]) => metric);
  const gaugeOf = (metric: string): GaugePanel =>
    tracker.find(each => each.metric === metric) ?? new GaugePanel(model, metric, trans);
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
      const gauge = gaugeOf(metric);
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
  return dragOf(tracker, gaugeOf, trans);
}

function dragOf(
  tracker: WidgetTracker<GaugePanel>,
  gaugeOf: (metric: string) => GaugePanel,
  trans: TranslationBundle
): GaugeDrag {
  return (metric, press) => {
    onMove(press, (x, y) => {
      drag(x, y, gaugeName(metric, trans), () => {
        const gauge = gaugeOf(metric);
        if (!tracker.has(gauge)) {
          void tracker.add(gauge);
        }
        return gauge;
      });
    });
  };
}

/** Drag a widget with its name as the drag image; the widget is created when it is dropped. */
function drag(x: number, y: number, name: string, widget: () => Widget): void {
  const mimeData = new MimeData();
  mimeData.setData(FACTORY, widget);
  const dragImage = document.createElement('div');
  dragImage.className = 'jp-Gipfel-dragged';
  dragImage.textContent = name;
  const dragged = new Drag({ mimeData, dragImage, supportedActions: 'move', proposedAction: 'move' });
  void dragged.start(x, y).then(() => {
    dragged.dispose();
  });
}

/** Call a function once a pressed pointer has moved by more than `DRAG_PIXELS`. */
function onMove(press: PointerEvent, moved: (x: number, y: number) => void): void {
  const end = new AbortController();
  const { signal } = end;
  const move = ({ clientX, clientY }: PointerEvent): void => {
    if (Math.hypot(clientX - press.clientX, clientY - press.clientY) >= DRAG_PIXELS) {
      end.abort();
      moved(clientX, clientY);
    }
  };
  document.addEventListener('pointermove', move, { signal, capture: true });
  for (const kind of ['pointerup', 'pointercancel']) {
    document.addEventListener(
      kind,
      () => {
        end.abort();
      },
      { signal, capture: true }
    );
  }
}
