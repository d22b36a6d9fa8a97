import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IJobEvent, ILifetime } from '../api';
import { formatLocalTime } from '../common/clock';
import type { LifetimeModel } from './model';

/** Maximum number of notifications at once, for example in the morning. */
const MAX_AT_ONCE = 5;
const START_SHOWN_MS = 10_000;
/** Age from which a notification shows when the event happened. */
const OLD_MS = 120_000;

/** Actions of the buttons of a notification. */
export interface IJobActions {
  /** Show a workload by its ID as `KIND:ID`. */
  openWorkload(id: string): void;
  /** Open a report by its path below the server's base URL. */
  openReport(path: string): void;
  /** Remember the keys of the events that the server sends now, also for the next visit. */
  saveSeen(keys: readonly string[]): void;
}

/** Notifications about the user's jobs: one has started or ended, GPUs are idle, a checkpoint won't fit. */
export class JobNotices {
  /**
   * @param _seen Keys of the events of an earlier visit; null at the first visit, when only new events are shown.
   */
  constructor(
    model: LifetimeModel,
    private readonly _trans: TranslationBundle,
    private readonly _actions: IJobActions,
    private _seen: readonly string[] | null
  ) {
    model.changed.connect((_, lifetime) => {
      this._show(lifetime);
    });
  }

  private _show({ events, now_ms }: ILifetime): void {
    // Compare keys, not times: the clocks of a cluster's nodes differ, and events arrive in any order.
    const keys = events.map(keyOf);
    const seen = this._seen ?? keys;
    for (const each of events.filter(each => !seen.includes(keyOf(each))).slice(-MAX_AT_ONCE)) {
      this._notify(each, now_ms);
    }
    if (this._seen?.join('\n') !== keys.join('\n')) {
      this._seen = keys;
      this._actions.saveSeen(keys);
    }
  }

  private _notify(event: IJobEvent, nowMs: number): void {
    const actions: Notification.IAction[] = [];
    if (event.workload !== '') {
      actions.push({
        label: this._trans.__('Show workload'),
        callback: () => {
          this._actions.openWorkload(event.workload);
        }
      });
    }
    if (event.report !== '') {
      actions.push({
        label: this._trans.__('Open report'),
        callback: () => {
          this._actions.openReport(event.report);
        }
      });
    }
    const autoClose = event.kind === 'started' ? START_SHOWN_MS : false;
    const isOld = nowMs - event.time_ms > OLD_MS;
    const title = isOld
      ? this._trans.__('%1 (%2)', event.title, formatLocalTime(event.time_ms, nowMs))
      : event.title;
    const text = event.reason === '' ? title : `${title}. ${event.reason}`;
    Notification.emit(text, typeOf(event.kind), { autoClose, actions });
  }
}

function keyOf(event: IJobEvent): string {
  return `${event.time_ms} ${event.title}`;
}

function typeOf(kind: IJobEvent['kind']): Notification.TypeOptions {
  switch (kind) {
    case 'failed':
      return 'error';
    case 'idle':
    case 'checkpoint':
    case 'hang':
    case 'time':
      return 'warning';
    case 'ended':
      return 'success';
    default:
      return 'info';
  }
}
