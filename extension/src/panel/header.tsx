import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IDevice, IRunInfo } from '../api';

const MINUTE_MS = 60_000;

/** GPUs, environment, remaining time and node of this server. */
export function Header(props: {
  run: IRunInfo | null;
  trans: TranslationBundle;
  children?: React.ReactNode;
}): React.JSX.Element {
  const { run, trans } = props;
  const now = useNow();
  if (!run) {
    return (
      <header className="jp-Gipfel-header">
        {trans.__('Loading the run of this server…')}
        {props.children}
      </header>
    );
  }
  const parts = [
    run.edf?.name ?? (run.job_id ? trans.__('no container') : ''),
    run.ends_ns === null ? '' : timeLeft(run.ends_ns / 1e6 - now, trans)
  ];
  return (
    <header className="jp-Gipfel-header">
      <strong className="jp-Gipfel-gpuNames">{gpuNames(run.devices, trans)}</strong>
      <span>{parts.filter(part => part !== '').join(' · ')}</span>
      {props.children}
      {run.run !== null && (
        <span className="jp-Gipfel-run" title={run.run}>
          {run.job_id
            ? trans.__('job %1 on %2, node %3', run.job_id, run.cluster, run.node)
            : trans.__('run %1 on %2', run.run.replace(/^.*\//, ''), run.node)}
        </span>
      )}
    </header>
  );
}

/** Return `4 × GH200`, or a text for no GPU. */
function gpuNames(devices: readonly IDevice[], trans: TranslationBundle): string {
  const counts = new Map<string, number>();
  for (const device of devices) {
    if (device.kind === 'gpu') {
      counts.set(device.name, (counts.get(device.name) ?? 0) + 1);
    }
  }
  const words = [...counts].map(([name, count]) => `${count} × ${name.replace(/^NVIDIA /, '')}`);
  return words.length > 0 ? words.join(', ') : trans.__('no GPU');
}

function timeLeft(leftMs: number, trans: TranslationBundle): string {
  if (leftMs <= 0) {
    return trans.__('time is up');
  }
  const minutes = Math.floor(leftMs / MINUTE_MS);
  const hours = Math.floor(minutes / 60);
  return hours > 0 ? trans.__('%1 h %2 min left', hours, minutes % 60) : trans.__('%1 min left', minutes);
}

function useNow(): number {
  const [now, setNow] = React.useState(() => Date.now());
  React.useEffect(() => {
    const timer = window.setInterval(() => {
      setNow(Date.now());
    }, MINUTE_MS / 2);
    return (): void => {
      window.clearInterval(timer);
    };
  }, []);
  return now;
}
