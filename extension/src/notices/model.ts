import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import type { ILeaving } from '../api';
import { ViewPoll } from '../common/view-poll';
import type { LeavingRequests } from './requests';

const POLL_MS = 30_000;
/** Timers may fire a little early. */
const LATE_MS = 250;

/**
 * When this server ends: asked for every half minute, and at the moment of each notice.
 *
 * It rests while the page is not in front, where a notice would not be seen, and asks when it comes back.
 */
export class LeavingModel implements IDisposable {
  constructor(private readonly _requests: LeavingRequests) {
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  /** Emitted with every answer of the server. */
  get changed(): ISignal<this, ILeaving> {
    return this._changed;
  }

  /** Milliseconds until a time of the server's clock. */
  leftMs(timeMs: number): number {
    return timeMs - Date.now() - this._aheadMs;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Ask now, and keep asking. */
  start(): void {
    this._onVisibility();
  }

  /** Ask for more time; the error is one line for people. */
  extend(): Promise<void> {
    return this._act(this._requests.extend());
  }

  /** Report that this server is wanted; the error is one line for people. */
  stay(): Promise<void> {
    return this._act(this._requests.stay());
  }

  dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._poll.dispose();
    Signal.clearData(this);
  }

  private async _act(answer: Promise<ILeaving>): Promise<void> {
    this._poll.wait(this._take(await answer));
  }

  /** Take the server's answer, and return the milliseconds until it is to be asked again. */
  private _take(leaving: ILeaving): number {
    this._aheadMs = leaving.now_ms - Date.now();
    this._changed.emit(leaving);
    return this._untilNextNotice(leaving);
  }

  private _untilNextNotice(leaving: ILeaving): number {
    if (leaving.ends_ms === null) {
      return POLL_MS;
    }
    const leftMs = this.leftMs(leaving.ends_ms);
    const waits = leaving.notices_s.map(notice => leftMs - notice * 1000 + LATE_MS).filter(wait => wait > 0);
    return Math.min(POLL_MS, ...waits);
  }

  private readonly _onVisibility = (): void => {
    this._poll.setVisible(document.visibilityState === 'visible');
  };

  // Where the server does not answer, the lab itself says so.
  private readonly _poll = new ViewPoll('leaving', async () => this._take(await this._requests.leaving()));
  private readonly _changed = new Signal<this, ILeaving>(this);
  private _aheadMs = 0;
}

/** The smallest notice that is due with so much time left, null before the first one. */
export function dueNotice(notices: readonly number[], leftMs: number): number | null {
  const due = notices.filter(notice => leftMs <= notice * 1000);
  return due.length > 0 ? Math.min(...due) : null;
}
