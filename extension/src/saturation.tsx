import type { TranslationBundle } from '@jupyterlab/translation';
import type { ISignal } from '@lumino/signaling';
import * as React from 'react';

import { FigureView } from './plot';
import type { Connection, IFigure, ISaturationStatus, Traces } from './tokens';

/** What the saturation section shows and calls. */
export interface ISaturationProps {
  readonly status: ISaturationStatus | null;
  readonly figure: IFigure | null;
  readonly connection: Connection;
  readonly samplesArrived: ISignal<unknown, Traces>;
  readonly busy: boolean;
  readonly problem: string;
  readonly trans: TranslationBundle;
  readonly onSimulate: () => void;
  readonly onStop: () => void;
  readonly onReconnect: () => void;
  readonly onNotebook: () => void;
}

/** Live plots of GPUs and host, with a word for how live they are. */
export function Saturation(props: ISaturationProps): React.JSX.Element {
  const { status, figure, trans } = props;
  return (
    <details className="jp-Gipfel-section" open>
      <summary>
        <h2>{trans.__('Saturation')}</h2>
        <StatusLine {...props} />
      </summary>
      <Notices {...props} />
      {props.problem !== '' && (
        <p className="jp-Gipfel-notice jp-mod-error" role="alert">
          <span aria-hidden="true">✗</span> {props.problem}
        </p>
      )}
      {figure && <Figure figure={figure} samplesArrived={props.samplesArrived} trans={trans} />}
      <div className="jp-Gipfel-actions">
        {status?.simulated === true && (
          <button className="jp-mod-styled" disabled={props.busy} onClick={props.onStop}>
            {trans.__('Stop the simulated source')}
          </button>
        )}
        <button className="jp-mod-styled" onClick={props.onNotebook}>
          {trans.__('Open the measure-saturation notebook')}
        </button>
      </div>
    </details>
  );
}

/** A shape, a word and the pace; the shape alone would not tell the colour-blind, the word alone not the hurried. */
function StatusLine(props: ISaturationProps): React.JSX.Element {
  const { status, connection, trans } = props;
  const state = connection === 'open' && status ? status.state : connection;
  const shown = {
    live: ['●', trans.__('live')],
    starting: ['◐', trans.__('starting')],
    stale: ['▲', trans.__('stale')],
    absent: ['○', trans.__('no samples')],
    open: ['◐', trans.__('starting')],
    connecting: ['◐', trans.__('connecting')],
    retrying: ['▲', trans.__('no answer')],
    paused: ['‖', trans.__('paused')]
  }[state] as [string, string];
  return (
    <span className="jp-Gipfel-status" role="status" data-state={state} title={status?.message ?? ''}>
      {status?.simulated === true && (
        <span className="jp-Gipfel-badge">
          <span aria-hidden="true">◇</span> {trans.__('simulated')}
        </span>
      )}
      <span className="jp-Gipfel-shape" aria-hidden="true">
        {shown[0]}
      </span>
      {shown[1]}
      {state === 'live' && status ? <span> {trans.__('every %1 s', status.interval)}</span> : null}
    </span>
  );
}

/** What is missing, and what to do about it. */
function Notices(props: ISaturationProps): React.JSX.Element | null {
  const { status, connection, trans } = props;
  if (connection === 'retrying') {
    return (
      <Notice shape="▲" text={trans.__('The notebook server does not answer. Trying again by itself.')}>
        <button className="jp-mod-styled" onClick={props.onReconnect}>
          {trans.__('Try now')}
        </button>
      </Notice>
    );
  }
  if (!status || connection !== 'open') {
    return <Notice shape="◐" text={trans.__('Asking the notebook server for its samples…')} />;
  }
  if (status.state === 'stale' || status.state === 'starting') {
    return <Notice shape={status.state === 'stale' ? '▲' : '◐'} text={status.message} />;
  }
  if (status.gpus > 0 || status.simulated) {
    return null;
  }
  const text =
    status.state === 'live'
      ? trans.__('There is no GPU here, so that only the host is shown. See what GPUs would look like:')
      : status.message;
  return (
    <Notice shape="○" text={text}>
      <button className="jp-mod-styled jp-mod-accept" disabled={props.busy} onClick={props.onSimulate}>
        {trans.__('Show a simulated source')}
      </button>
    </Notice>
  );
}

function Notice(props: { shape: string; text: string; children?: React.ReactNode }): React.JSX.Element {
  return (
    <div className="jp-Gipfel-notice">
      <p>
        <span aria-hidden="true">{props.shape}</span> {props.text}
      </p>
      {props.children}
    </div>
  );
}

interface IFigureProps {
  readonly figure: IFigure;
  readonly samplesArrived: ISignal<unknown, Traces>;
  readonly trans: TranslationBundle;
}

/** The node that plotly.js draws into; React only makes it. */
function Figure(props: IFigureProps): React.JSX.Element {
  const { figure, samplesArrived, trans } = props;
  const node = React.useRef<HTMLDivElement>(null);
  const view = React.useRef<FigureView | null>(null);
  const [failed, setFailed] = React.useState(false);

  React.useEffect(() => {
    if (node.current) {
      view.current = new FigureView(node.current);
    }
    return (): void => {
      view.current?.dispose();
      view.current = null;
    };
  }, []);

  React.useEffect(() => {
    view.current?.draw(figure).then(
      () => {
        setFailed(false);
      },
      () => {
        setFailed(true);
      }
    );
  }, [figure]);

  React.useEffect(() => {
    const extend = (_: unknown, traces: Traces): void => {
      void view.current?.extend(traces);
    };
    samplesArrived.connect(extend);
    return (): void => {
      samplesArrived.disconnect(extend);
    };
  }, [samplesArrived]);

  return (
    <>
      {failed && (
        <p className="jp-Gipfel-notice jp-mod-error" role="alert">
          <span aria-hidden="true">✗</span> {trans.__('The plots could not be loaded. Reload this page.')}
        </p>
      )}
      <div className="jp-Gipfel-figure" ref={node} />
    </>
  );
}
