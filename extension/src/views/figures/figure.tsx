import * as React from 'react';

import type { IFigure } from '../../api';
import { Notice } from '../../common/notice';
import type { ITranslation } from '../translation';
import type { bandedLine } from './bands';
import type { DrawQueue } from './draw-queue';
import { FigureView, type IFigureContent, type IFigureOptions, type ITimeSpan } from './plot';
import type { PlotlyLoader } from './plotly';
import type { SampleUpdate } from './traces';

/** Callbacks for the changes of a figure. */
export interface IFigureFollower {
  /** There is a new figure. */
  replaced(): void;
  /** There are new samples, for this or other figures. */
  extended(update: SampleUpdate): void;
  /** The page has another theme. */
  restyled(): void;
}

/** Optional aids for reading figures: bands, tables, cursor and keys. */
export interface IFigureAids {
  /** Returns a line with its band if it has more points than the plot has pixels. */
  readonly bandedLine: typeof bandedLine;
  /** A figure as text. */
  readonly Table: React.ComponentType<{
    label: string;
    read: () => IFigureContent | null;
    trans: ITranslation;
  }>;
  /** Add cursor and keys to a figure's node until the returned function is called; `zoom` draws a time span. */
  attach(node: HTMLElement, view: FigureView, zoom: (span: ITimeSpan | null) => void): () => void;
}

/** Provides figures by name, and reports their changes. */
export interface IFigureSource {
  readonly loadPlotly: PlotlyLoader;
  /** Draws the figures one after the other. */
  readonly queue: DrawQueue;
  /** The time span to highlight; null for none. */
  readonly marked: ITimeSpan | null;
  readonly aids?: IFigureAids;
  /** Return a figure; null if there is none. */
  figure(name: string): IFigure | null;
  /** Return how a figure is drawn. */
  options?(name: string): IFigureOptions;
  /** Report what changes in a figure until the returned function is called. */
  follow(name: string, follower: IFigureFollower): () => void;
  /** Show a time span that the user has zoomed to; null for the moving window. */
  zoom(span: ITimeSpan | null): void;
}

interface IFigureProps {
  readonly source: IFigureSource;
  /** The name of the figure in the source. */
  readonly name: string;
  /** Description for screen readers. */
  readonly label: string;
  readonly trans: ITranslation;
  readonly onRow?: (row: number, add: boolean) => void;
  /** Called with the name of a line that was clicked. */
  readonly onLine?: (name: string, add: boolean) => void;
}

/** A figure of a source. React only creates its node; plotly.js draws into it. */
export function Figure(props: IFigureProps): React.JSX.Element {
  const { source, name, label, trans } = props;
  const node = React.useRef<HTMLDivElement>(null);
  const on = React.useRef(props);
  const view = React.useRef<FigureView | null>(null);
  const Table = source.aids?.Table;
  const [failed, setFailed] = React.useState(false);
  React.useEffect(() => {
    on.current = props;
  });

  React.useEffect(
    () =>
      node.current
        ? show(node.current, source, name, {
            created: created => {
              view.current = created;
            },
            row: (row, add) => on.current.onRow?.(row, add),
            line: (line, add) => on.current.onLine?.(line, add),
            failed: setFailed
          })
        : undefined,
    [source, name]
  );

  return (
    <div className="jp-Gipfel-plot">
      {failed && (
        <Notice error shape="✗" text={trans.__('This plot could not be drawn. Reload this page.')} />
      )}
      <div className="jp-Gipfel-scroll">
        <div className="jp-Gipfel-figure" role="figure" aria-label={label} data-figure={name} ref={node} />
      </div>
      {Table && <Table label={label} read={() => view.current?.content ?? null} trans={trans} />}
    </div>
  );
}

interface IFigureCallbacks {
  readonly created: (view: FigureView) => void;
  readonly row: (row: number, add: boolean) => void;
  readonly line: (name: string, add: boolean) => void;
  readonly failed: (failed: boolean) => void;
}

/** Draw a figure of the source into a node until the returned function is called. */
function show(node: HTMLElement, source: IFigureSource, name: string, on: IFigureCallbacks): () => void {
  const { aids } = source;
  const listener = { onZoom: source.zoom.bind(source), onRow: on.row, onLine: on.line };
  const options = { banded: aids?.bandedLine, ...source.options?.(name) };
  const view = new FigureView(node, source.loadPlotly, listener, options);
  on.created(view);
  const draw = async (): Promise<void> => {
    try {
      await view.draw();
      on.failed(false);
    } catch (reason) {
      on.failed(true);
      throw reason;
    }
  };
  const detach = aids?.attach(node, view, span => {
    view.zoom(span);
    source.queue.request(view, name, draw, true);
  });
  const setFigure = (): void => {
    const figure = source.figure(name);
    if (figure) {
      view.set(figure);
      view.mark(source.marked);
      source.queue.request(view, name, draw, true);
    }
  };
  setFigure();
  const unfollow = source.follow(name, {
    replaced: setFigure,
    extended: update => {
      if (view.extend(update)) {
        source.queue.request(view, name, draw);
      }
    },
    restyled: () => {
      source.queue.request(view, name, draw, true);
    }
  });
  return () => {
    unfollow();
    detach?.();
    source.queue.drop(view);
    view.dispose();
  };
}
