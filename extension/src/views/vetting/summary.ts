import type { IVettingGrid } from '../../api';
import { formatLocalTime } from '../../common/clock';
import type { ITranslation } from '../translation';

/** The state of a vetting in one line. */
export interface IVettingSummary {
  readonly state: 'running' | 'good' | 'bad';
  readonly shape: string;
  readonly text: string;
}

/** Return the progress of a vetting that is running, or the result, time, protocol and duration of one that ended. */
export function summarizeVetting(grid: IVettingGrid, running: boolean, trans: ITranslation): IVettingSummary {
  const { nodes, protocol } = grid;
  if (running) {
    const text = trans._n('%2 of %1 node done (%3)', '%2 of %1 nodes done (%3)', nodes, grid.done, protocol);
    return { state: 'running', shape: '◐', text };
  }
  const good = grid.complete && grid.vetted === nodes;
  const seconds = Math.round(((grid.ended_ns ?? grid.started_ns) - grid.started_ns) / 1e9);
  const duration = grid.complete ? trans.__('%1 s', seconds) : trans.__('%1 s, not complete', seconds);
  const text = trans._n(
    '%2 of %1 node vetted %3 (%4, %5)',
    '%2 of %1 nodes vetted %3 (%4, %5)',
    nodes,
    grid.vetted,
    formatLocalTime(grid.started_ns / 1e6),
    protocol,
    duration
  );
  return { state: good ? 'good' : 'bad', shape: good ? '✓' : '✗', text };
}
