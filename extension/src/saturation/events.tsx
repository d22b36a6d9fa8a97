import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IRunEvent } from '../api';
import { formatTimeOfDay, zoneName } from '../common/clock';
import type { SaturationModel } from './model';

const AROUND_MS = 60_000;
/** Kinds of events in which a GPU or a node was lost, or samples can't be written; the others are notices. */
const PROBLEMS = new Set(['xid', 'gpu_lost', 'node_lost', 'disk_full', 'samples_lost']);

/** Events of the run, about its GPUs, nodes and workloads or about the recording itself, the newest first. */
export function Events(props: {
  events: readonly IRunEvent[];
  model: SaturationModel;
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { events, model, trans } = props;
  if (events.length === 0) {
    return null;
  }
  const problems = events.filter(event => PROBLEMS.has(event.kind)).length;
  return (
    <details className="jp-Gipfel-more jp-Gipfel-view">
      <summary>
        {trans._n('%1 event', '%1 events', events.length)}
        {problems > 0 && ` · ✗ ${trans._n('%1 problem', '%1 problems', problems)}`}
      </summary>
      <ul className="jp-Gipfel-events">
        {[...events].reverse().map((event, place) => (
          <li key={`${event.time_ms}-${place}`}>
            <button
              className="jp-Gipfel-link"
              title={trans.__('Zoom to this event')}
              onClick={() => {
                model.selection.setTimeSpan({
                  sinceMs: event.time_ms - AROUND_MS,
                  untilMs: event.time_ms + AROUND_MS
                });
              }}
            >
              <time dateTime={new Date(event.time_ms).toISOString()}>
                {formatTimeOfDay(event.time_ms)} {zoneName(event.time_ms)}
              </time>
            </button>{' '}
            <span aria-hidden="true">{PROBLEMS.has(event.kind) ? '✗' : '⚑'}</span> {event.node}:{' '}
            {event.message}
          </li>
        ))}
      </ul>
    </details>
  );
}
