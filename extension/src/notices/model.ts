import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import type { LeavingRequests } from './requests';
import type { ILeaving } from '../api';

const POLL_MS = 30_000;
/** Nobody sees a notice on a page that is not in front. */
const HIDDEN_MS = 300_000;
/** Timers may fire a little early. */
const LATE_MS = 250;

/** When this server ends: asked for every half minute while the page is seen, and at the moment of each notice. */
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
    return this._isDisposed;
  }

  /** Ask now, and go on asking. */
  async refresh(): Promise<void> {
    await this._take(this._requests.leaving());
  }

  /** Ask for more time; the error is one line for people. */
  extend(): Promise<void> {
    return this._take(this._requests.extend(), true);
  }

  /** Say that this server is wanted; the error is one line for people. */
  stay(): Promise<void> {
    return this._take(this._requests.stay(), true);
  }

  dispose(): void {
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.clearTimeout(this._timer);
    Signal.clearData(this);
  }

  private async _take(answer: Promise<ILeaving>, loud = false): Promise<void> {
    let waitMs = POLL_MS;
    try {
      const leaving = await answer;
      this._aheadMs = leaving.now_ms - Date.now();
      waitMs = this._untilNextNotice(leaving);
      this._changed.emit(leaving);
    } catch (error) {
      if (loud) {
        throw error;
      }
      // A server that does not answer is said by the lab itself.
    } finally {
      window.clearTimeout(this._timer);
      if (!this._isDisposed) {
        const ms = document.visibilityState === 'visible' ? waitMs : HIDDEN_MS;
        this._timer = window.setTimeout(() => void this.refresh(), ms);
      }
    }
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
    window.clearTimeout(this._timer);
    if (document.visibilityState === 'visible') {
      void this.refresh();
    } else {
      this._timer = window.setTimeout(() => void this.refresh(), HIDDEN_MS);
    }
  };

  private readonly _changed = new Signal<this, ILeaving>(this);
  private _timer = 0;
  private _aheadMs = 0;
  private _isDisposed = false;
}

/** The smallest notice that is due with so much time left, null before the first one. */
export function dueNotice(notices: readonly number[], leftMs: number): number | null {
  const due = notices.filter(notice => leftMs <= notice * 1000);
  return due.length > 0 ? Math.min(...due) : null;
}
