import type { ILaunch } from '../../api';
import { joinParts } from '../elements';
import type { ITranslation } from '../translation';
import type { ILaunchDetails } from './document';

/** Size of the picture of the loss, in pixels. */
export const CURVE = { width: 120, height: 24 } as const;
const MARGIN = 2;

const SHAPES: Readonly<Record<string, string>> = {
  completed: '✓',
  checked: '✓',
  running: '●',
  queued: '○',
  vetting: '◐',
  preflight: '◐',
  stopped: '■',
  preempted: '◇',
  silent: '?'
};

/** Return the symbol of a launch's state. */
export function statusShape(status: string): string {
  return SHAPES[status] ?? '✗';
}

/** Return the state of a launch as text. */
export function statusText(status: string, trans: ITranslation): string {
  return status === 'silent' ? trans.__('not responding') : status;
}

/** Return the number of ranks, per node where there are several nodes. */
export function rankText(launch: ILaunch, trans: ITranslation): string {
  const { ranks, node_count: nodes } = launch;
  return nodes > 1
    ? trans._n('%2 × %1 rank', '%2 × %1 ranks', ranks / nodes, nodes)
    : trans._n('%1 rank', '%1 ranks', ranks);
}

/** Return progress, rate, loss, score and restarts in one line; empty if none is known. */
export function progressText(
  launch: ILaunch,
  details: ILaunchDetails | undefined,
  trans: ITranslation
): string {
  const { progress, training_curve: curve } = launch;
  const found: string[] = [];
  if (progress.fraction !== null) {
    found.push(`${Math.round(100 * progress.fraction)} %`);
  }
  if (progress.step !== null) {
    const total = progress.total === null ? '' : `/${progress.total.toLocaleString('en')}`;
    found.push(trans.__('step %1', progress.step.toLocaleString('en') + total));
  }
  if (curve.rate !== null) {
    found.push(`${formatNumber(curve.rate)} ${curve.rate_name.replace(/_per_s$/, '')}/s`);
  } else if (curve.steps_per_s !== null) {
    const rate = formatNumber(curve.steps_per_s, 3);
    found.push(rate === '1' ? trans.__('1 step/s') : trans.__('%1 steps/s', rate));
  }
  const loss = details?.losses.at(-1);
  if (loss !== undefined) {
    found.push(trans.__('loss %1', formatNumber(loss)));
  }
  if (typeof launch.score === 'number') {
    found.push(trans.__('score %1 of 100', Math.round(launch.score)));
  }
  if (launch.restarts > 0) {
    found.push(trans._n('%1 restart', '%1 restarts', launch.restarts));
  }
  return joinParts(found);
}

/** Return a number with this many significant digits, without an exponent. */
export function formatNumber(value: number, digits = 4): string {
  return Number(value.toPrecision(digits)).toLocaleString('en', { maximumFractionDigits: 6 });
}

/** Return a duration in its two largest units, such as `1 h 5 min`. */
export function durationText(seconds: number): string {
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (hours > 0) {
    return `${hours} h ${minutes % 60} min`;
  }
  const rest = `${Math.max(0, Math.floor(seconds % 60))} s`;
  return minutes > 0 ? `${minutes} min ${rest}` : rest;
}

/** Return the points of a polyline through at least two values, in the pixels of `CURVE`. */
export function curvePoints(values: readonly number[]): string {
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const height = CURVE.height - 2 * MARGIN;
  return values
    .map((value, index) => {
      const x = (CURVE.width * index) / (values.length - 1);
      return `${x.toFixed(1)},${(CURVE.height - MARGIN - (height * (value - low)) / span).toFixed(1)}`;
    })
    .join(' ');
}
