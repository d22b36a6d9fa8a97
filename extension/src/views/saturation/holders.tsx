import * as React from 'react';

import type { IDevice, IGpuProcess } from '../../api';
import type { ITranslation } from '../translation';
import { gpuName } from './gpus';

/** Number of processes that are listed. */
const MOST = 12;

/**
 * The processes that hold GPUs beside the ranks of launches, such as kernels and other users' programs.
 *
 * It is open where a process takes part of a GPU from another one: of another user, or a second one.
 */
export function GpuHolders(props: {
  processes: readonly IGpuProcess[];
  gpus: readonly IDevice[];
  trans: ITranslation;
}): React.JSX.Element | null {
  const { processes, gpus, trans } = props;
  if (processes.length === 0) {
    return null;
  }
  const several = new Set(gpus.map(gpu => gpu.node)).size > 1;
  const count = new Set(processes.map(each => `${each.node} ${each.pid}`)).size;
  const counts = new Map<string, number>();
  for (const { gpu_uuid: uuid } of processes) {
    counts.set(uuid, (counts.get(uuid) ?? 0) + 1);
  }
  const shared = processes.filter(each => each.user !== '' || (counts.get(each.gpu_uuid) ?? 0) > 1);
  const nameOf = (uuid: string): string => {
    const gpu = gpus.find(each => each.uuid === uuid);
    return gpu ? gpuName(gpu, several) : uuid;
  };
  return (
    <details className="jp-Gipfel-more jp-Gipfel-view jp-Gipfel-holders" open={shared.length > 0}>
      <summary>
        {shared.length > 0 && <span aria-hidden="true">▲ </span>}
        {trans._n('%1 process holds a GPU', '%1 processes hold GPUs', count)}
      </summary>
      <ul>
        {processes.slice(0, MOST).map(each => (
          <li key={`${each.node} ${each.pid} ${each.gpu_uuid}`}>
            {nameOf(each.gpu_uuid)}:{' '}
            {each.name === '' ? trans.__('a process that is not visible here') : each.name}
            {each.user !== '' && ` ${trans.__('of the user %1', each.user)}`} ({trans.__('pid %1', each.pid)})
          </li>
        ))}
        {processes.length > MOST && <li>{trans.__('%1 more', processes.length - MOST)}</li>}
      </ul>
      <p className="jp-Gipfel-small">
        {trans.__(
          'Ranks of launches are not listed. Shut a kernel down with Kernel > Shut Down Kernel; it then frees its memory.'
        )}
      </p>
    </details>
  );
}
