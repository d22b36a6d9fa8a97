import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IJobEvent, ILifetime } from '../api';
import type { LifetimeModel } from './model';

/** Most notifications at once, such as after a night. */
const MOST = 5;
const START_SHOWN_MS = 10_000;

/** What the buttons of a notification do. */
export interface IJobActions {
  /** Show a workload by its ID as `KIND:ID`. */
  openWorkload(id: string): void;
  /** Open a report by its path below the server's base URL. */
  openReport(path: string): void;
  /** Remember the time of the newest event that was shown, also for the next visit. */
  saveSeen(timeMs: number): void;
}

/** Notifications about the user's jobs: one has started or ended, GPUs are idle, a checkpoint won't fit. */
export class JobNotices {
  /**
   * @param _seenMs Time of the newest event of an earlier visit; null at the first visit, which shows only new ones.
   */
  constructor(
    model: LifetimeModel,
    private readonly _trans: TranslationBundle,
    private readonly _actions: IJobActions,
    private _seenMs: number | null
  ) {
    model.changed.connect((_, lifetime) => {
      this._show(lifetime);
    });
  }

  private _show({ events, now_ms }: ILifetime): void {
    const seen = this._seenMs ?? now_ms;
    const unseen = events.filter(each => each.time_ms > seen);
    for (const each of unseen.slice(-MOST)) {
      this._notify(each);
    }
    const newest = Math.max(seen, ...unseen.map(each => each.time_ms));
    if (newest !== this._seenMs) {
      this._seenMs = newest;
      this._actions.saveSeen(newest);
    }
  }

  private _notify(event: IJobEvent): void {
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
    const text = event.reason === '' ? event.title : `${event.title}. ${event.reason}`;
    Notification.emit(text, typeOf(event.kind), { autoClose, actions });
  }
}

function typeOf(kind: IJobEvent['kind']): Notification.TypeOptions {
  switch (kind) {
    case 'failed':
      return 'error';
    case 'idle':
    case 'checkpoint':
    case 'time':
      return 'warning';
    case 'ended':
      return 'success';
    default:
      return 'info';
  }
}
