import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import type { ILifetime } from '../api';
import type { IPushed } from '../common/server-changes';
import { ViewPoll } from '../common/view-poll';
import type { LifetimeRequests } from './requests';

const POLL_MS = 30_000;
/** Longest delay of a timer: a day. (Browsers allow no more than 24 days.) */
const LONGEST_TIMER_MS = 24 * 3_600_000;
/** Added to the wait for a notice, so that a timer that fires early still finds it due. */
const LATE_MS = 250;

/**
 * Knows when this server ends. Asks the server again when a notice is due and when the server pushes a change; while
 * it can't push, at least every half minute. A notice is the number of seconds before the end at which the user is
 * told of it.
 *
 * Polling stops while the page is hidden, and resumes when it becomes visible.
 */
export class LifetimeModel implements IDisposable {
  constructor(
    private readonly _requests: LifetimeRequests,
    changes: IPushed | null = null
  ) {
    // Errors of requests are not shown here: JupyterLab itself reports a server that does not respond.
    this._poll = new ViewPoll('lifetime', async () => this._take(await this._requests.lifetime()), changes);
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  /** Emitted with every response of the server. */
  get changed(): ISignal<this, ILifetime> {
    return this._changed;
  }

  /** Return the milliseconds until a time on the server's clock. */
  leftMs(timeMs: number): number {
    return timeMs - Date.now() - this._aheadMs;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Start polling. */
  start(): void {
    this._onVisibility();
  }

  /** Request more time; throws an error with a message for the user. */
  extend(): Promise<void> {
    return this._act(this._requests.extend());
  }

  /** Report that this server is in use; throws an error with a message for the user. */
  keepAlive(): Promise<void> {
    return this._act(this._requests.keepAlive());
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._poll.dispose();
    Signal.clearData(this);
  }

  private async _act(answer: Promise<ILifetime>): Promise<void> {
    const wait = this._take(await answer);
    if (wait !== null) {
      this._poll.wait(wait);
    }
  }

  /** Handle a response; return the milliseconds until the next request, null to wait for a pushed change. */
  private _take(lifetime: ILifetime): number | null {
    this._aheadMs = lifetime.now_ms - Date.now();
    this._changed.emit(lifetime);
    return this._untilNextNotice(lifetime);
  }

  private _untilNextNotice(lifetime: ILifetime): number | null {
    const longest = this._poll.pushed ? [] : [POLL_MS];
    const leftMs = lifetime.ends_ms === null ? 0 : this.leftMs(lifetime.ends_ms);
    const waits = lifetime.notices_s.map(notice => leftMs - notice * 1000 + LATE_MS).filter(wait => wait > 0);
    const next = Math.min(...longest, ...waits, LONGEST_TIMER_MS);
    return this._poll.pushed && waits.length === 0 ? null : next;
  }

  private readonly _onVisibility = (): void => {
    this._poll.setVisible(document.visibilityState === 'visible');
  };

  private readonly _poll: ViewPoll;
  private readonly _changed = new Signal<this, ILifetime>(this);
  private _aheadMs = 0;
}

/** Return the smallest notice that is due when `leftMs` remain until the end; null if none is. */
export function dueNotice(notices: readonly number[], leftMs: number): number | null {
  const due = notices.filter(notice => leftMs <= notice * 1000);
  return due.length > 0 ? Math.min(...due) : null;
}
