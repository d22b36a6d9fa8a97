import type { IJobDocument, IJobVerdict, IJobVerdicts, IRunEvent } from '../api';

/** An event of recorders, GPUs, rules or launches, or a verdict. */
export interface IEventRow {
  readonly key: string;
  /** UTC in milliseconds; null for a verdict on the whole run. */
  readonly timeMs: number | null;
  readonly kind: string;
  /** 2 ends a job or keeps it from running, 1 costs time, 0 is for information. */
  readonly severity: number;
  readonly text: string;
  readonly event: IRunEvent | null;
  readonly verdict: IJobVerdict | null;
}

const BAD: Readonly<Record<string, number>> = {
  xid: 2,
  gpu_lost: 2,
  node_lost: 2,
  disk_full: 2,
  samples_lost: 1,
  throttle: 1,
  rule: 1
};

/** Return verdicts without a time first, then everything from the newest to the oldest. */
export function eventRows(job: IJobDocument | null, verdicts: IJobVerdicts | null): readonly IEventRow[] {
  const judged = (verdicts?.verdicts ?? []).map((verdict, place): IEventRow => ({
    key: `verdict-${place}`,
    timeMs: verdict.since_ms,
    kind: verdict.kind,
    severity: verdict.severity,
    text: `${verdict.title}. ${verdict.evidence}`.trim(),
    event: null,
    verdict
  }));
  const happened = (job?.events ?? []).map((event, place): IEventRow => ({
    key: `event-${place}`,
    timeMs: event.time_ms,
    kind: event.kind,
    severity: BAD[event.kind] ?? 0,
    text: event.node === '' ? event.message : `${event.node}: ${event.message}`,
    event,
    verdict: null
  }));
  return [...judged, ...happened].sort((a, b) => (b.timeMs ?? Infinity) - (a.timeMs ?? Infinity) || 0);
}
