import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { inLocalTime } from '../common/clock';
import { Notice } from '../common/notice';
import { StateLine } from '../views/saturation/state';
import type { SaturationModel } from './model';

const TICK_MS = 1000;

interface IStatusProps {
  readonly model: SaturationModel;
  readonly trans: TranslationBundle;
}

/** The state as a symbol and a word, and the age of the samples. The server's messages have times in UTC. */
export function StatusLine(props: IStatusProps): React.JSX.Element {
  const { model, trans } = props;
  const { status, connection } = model;
  const liveState = connection === 'open' && status ? status.state : connection;
  const state =
    model.selection.live || connection === 'retrying' ? liveState : model.growing ? 'growing' : 'past';
  const simulated = model.selection.live ? status?.simulated === true : model.score?.simulated === true;
  return (
    <StateLine
      state={state}
      simulated={simulated}
      title={inLocalTime(status?.message ?? '')}
      beside={state === 'live' && <Age model={model} trans={trans} />}
      trans={trans}
    />
  );
}

/** The age of the newest samples; screen readers do not announce it. */
function Age(props: IStatusProps): React.JSX.Element {
  const { model, trans } = props;
  const [now, setNow] = React.useState(() => Date.now());
  React.useEffect(() => {
    const timer = window.setInterval(() => {
      setNow(Date.now());
    }, TICK_MS);
    return (): void => {
      window.clearInterval(timer);
    };
  }, []);
  const age = model.receivedMs > 0 ? Math.max(0, Math.round((now - model.receivedMs) / 1000)) : 0;
  return <span className="jp-Gipfel-age">{trans.__('%1 s', Math.max(age, 1))}</span>;
}

/** What is missing, and what to do about it. */
export function Notices(props: IStatusProps): React.JSX.Element | null {
  const { model, trans } = props;
  const { status, connection } = model;
  if (connection === 'retrying') {
    return (
      <Notice shape="▲" text={trans.__('The server is not responding. Retrying…')}>
        <button
          className="jp-Gipfel-button"
          onClick={() => {
            model.reconnect();
          }}
        >
          {trans.__('Try now')}
        </button>
      </Notice>
    );
  }
  if (!model.selection.live || model.paused) {
    return null;
  }
  if (!status || connection !== 'open') {
    return <Notice shape="◐" text={trans.__('Loading samples from the notebook server…')} />;
  }
  if (status.state === 'stale' || status.state === 'starting') {
    return <Notice shape={status.state === 'stale' ? '▲' : '◐'} text={inLocalTime(status.message)} />;
  }
  if (status.gpus > 0 || status.simulated) {
    return null;
  }
  const none = trans.__(
    'No GPU found: only this machine’s CPU, memory and disks are shown. To try this panel, show simulated GPUs.'
  );
  const missing = model.run?.no_gpu ?? '';
  const text = status.state === 'live' ? (missing === '' ? none : missing) : inLocalTime(status.message);
  return (
    <Notice shape="○" text={text}>
      <button
        className="jp-Gipfel-button jp-mod-accept"
        disabled={model.busy}
        onClick={() => void model.startSimulation()}
      >
        {trans.__('Show simulated GPUs')}
      </button>
    </Notice>
  );
}
