import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { Notice } from '../common/notice';
import type { News } from '../figures/news';
import { FigureView, type ISpan } from '../figures/plot';
import type { SaturationModel } from './model';

interface IFigureProps {
  readonly model: SaturationModel;
  /** Which of the model's figures. */
  readonly name: string;
  /** What it shows, for who can't see it. */
  readonly label: string;
  readonly trans: TranslationBundle;
  readonly onRow?: (row: number) => void;
}

/** The node that plotly.js draws into when it is its turn; React only makes it. */
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

interface ITold {
  readonly row: (row: number) => void;
  readonly failed: (failed: boolean) => void;
}

/** Draw a figure of the model into a node until the returned function is called. */
function follow(node: HTMLElement, model: SaturationModel, name: string, told: ITold): () => void {
  const onZoom = (span: ISpan | null): void => {
    if (span) {
      model.shown.setSpan(span);
    } else {
      model.shown.setWhole();
    }
  };
  const view = new FigureView(node, { onZoom, onRow: told.row });
  const draw = async (): Promise<void> => {
    try {
      await view.draw();
      told.failed(false);
    } catch (reason) {
      told.failed(true);
      throw reason;
    }
  };
  const take = (): void => {
    const figure = model.figure(name);
    if (figure) {
      view.set(figure);
      const { evidence } = model.shown;
      view.mark(evidence && { sinceMs: evidence.start_ns / 1e6, untilMs: evidence.end_ns / 1e6 });
      model.queue.request(name, draw, true);
    }
  };
  const onFigures = (_: unknown, names: readonly string[]): void => {
    if (names.includes(name)) {
      take();
    }
  };
  const onNews = (_: unknown, news: News): void => {
    if (view.extend(news)) {
      model.queue.request(name, draw);
    }
  };
  take();
  model.figuresChanged.connect(onFigures);
  model.newsArrived.connect(onNews);
  return () => {
    model.figuresChanged.disconnect(onFigures);
    model.newsArrived.disconnect(onNews);
    model.queue.drop(name);
    view.dispose();
  };
}
