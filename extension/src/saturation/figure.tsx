import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { Notice } from '../common/notice';
import { loadPlotly } from '../figures/plotly';
import { FigureView, type ITimeSpan } from '../views/figures/plot';
import type { SampleUpdate } from '../views/figures/updates';
import type { SaturationModel } from './model';

interface IFigureProps {
  readonly model: SaturationModel;
  /** The name of the figure in the model. */
  readonly name: string;
  /** Description for screen readers. */
  readonly label: string;
  readonly trans: TranslationBundle;
  readonly onRow?: (row: number) => void;
}

/** A figure of the model. React only creates its node; plotly.js draws into it. */
export function Figure(props: IFigureProps): React.JSX.Element {
  const { model, name, label, trans } = props;
  const node = React.useRef<HTMLDivElement>(null);
  const onRow = React.useRef(props.onRow);
  const [failed, setFailed] = React.useState(false);
  React.useEffect(() => {
    onRow.current = props.onRow;
  });

  React.useEffect(
    () =>
      node.current
        ? follow(node.current, model, name, { row: row => onRow.current?.(row), failed: setFailed })
        : undefined,
    [model, name]
  );

  return (
    <>
      {failed && (
        <Notice error shape="✗" text={trans.__('This plot could not be drawn. Reload this page.')} />
      )}
      <div className="jp-Gipfel-scroll">
        <div className="jp-Gipfel-figure" role="figure" aria-label={label} data-figure={name} ref={node} />
      </div>
    </>
  );
}

interface IFigureCallbacks {
  readonly row: (row: number) => void;
  readonly failed: (failed: boolean) => void;
}

/** Draw a figure of the model into a node until the returned function is called. */
function follow(node: HTMLElement, model: SaturationModel, name: string, on: IFigureCallbacks): () => void {
  const onZoom = (span: ITimeSpan | null): void => {
    if (span) {
      model.selection.setTimeSpan(span);
    } else {
      model.selection.clearTimeSpan();
    }
  };
  const view = new FigureView(node, loadPlotly, { onZoom, onRow: on.row });
  const draw = async (): Promise<void> => {
    try {
      await view.draw();
      on.failed(false);
    } catch (reason) {
      on.failed(true);
      throw reason;
    }
  };
  const setFigure = (): void => {
    const figure = model.figure(name);
    if (figure) {
      view.set(figure);
      const { evidence } = model.selection;
      view.mark(evidence && { sinceMs: evidence.start_ns / 1e6, untilMs: evidence.end_ns / 1e6 });
      model.queue.request(name, draw, true);
    }
  };
  const onFigures = (_: unknown, names: readonly string[]): void => {
    if (names.includes(name)) {
      setFigure();
    }
  };
  const onUpdate = (_: unknown, update: SampleUpdate): void => {
    if (view.extend(update)) {
      model.queue.request(name, draw);
    }
  };
  setFigure();
  model.figuresChanged.connect(onFigures);
  model.samplesReceived.connect(onUpdate);
  return () => {
    model.figuresChanged.disconnect(onFigures);
    model.samplesReceived.disconnect(onUpdate);
    model.queue.drop(name);
    view.dispose();
  };
}
