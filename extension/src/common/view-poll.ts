import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

import type { IPushed } from './server-changes';

const FIRST_MS = 1_000;
const LONGEST_RETRY_MS = 30_000;

/**
 * Polls the server while a view is visible, and more slowly while the server does not respond.
 *
 * If the server pushes changes, it also sends a request at each change.
 */
export class ViewPoll implements IDisposable {
  /**
   * @param name Name of the poll, without the prefix of the extension.
   * @param ask Sends one request; returns the milliseconds until the next one, or null to wait for `refresh` or
   * a pushed change.
   * @param _changes Changes that the server pushes for this view; null if it is only polled.
   */
  constructor(
    name: string,
    private readonly _ask: () => Promise<number | null>,
    private readonly _changes: IPushed | null = null
  ) {
    _changes?.changed.connect(this._onChanged);
    this._poll = new Poll({
      auto: false,
      name: `@gipfel/extension:${name}`,
      frequency: { interval: FIRST_MS, backoff: true, max: LONGEST_RETRY_MS },
      standby: 'never',
      factory: () => this._turn()
    });
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** True while the server pushes changes, so that `ask` may return null. */
  get pushed(): boolean {
    return this._changes?.open === true;
  }

  /** True while the view is visible. */
  get visible(): boolean {
    return this._visible;
  }

  /** Poll now and while the view is visible; stop when it is not. */
  setVisible(visible: boolean): void {
    this._visible = visible;
    if (visible) {
      void this.refresh();
    } else {
      void this._poll.stop();
    }
  }

  /** Poll now, even if the view is hidden, and resolve after the response or an error. */
  async refresh(): Promise<void> {
    // Not `Poll.refresh`, which may return the response of a request sent before the user acted.
    await this._poll.schedule({ interval: Poll.IMMEDIATE, phase: 'refreshed' });
    // Disposing of the poll rejects it.
    await this._poll.tick.catch(() => undefined);
  }

  /** Send the next request after `ms` milliseconds. */
  wait(ms: number): void {
    if (this._visible) {
      void this._poll.schedule({ interval: ms, phase: 'standby' });
    }
  }

  dispose(): void {
    this._changes?.changed.disconnect(this._onChanged);
    this._poll.dispose();
  }

  private readonly _onChanged = (): void => {
    if (this._visible) {
      void this.refresh();
    }
  };

  private async _turn(): Promise<void> {
    const { tick } = this._poll;
    let waitMs: number | null = null;
    let failed = true;
    try {
      waitMs = await this._ask();
      failed = false;
    } finally {
      // Otherwise a newer request has started, which sets the next interval.
      if (tick === this._poll.tick) {
        if (waitMs !== null) {
          const max = Math.max(waitMs, LONGEST_RETRY_MS);
          this._poll.frequency = { interval: waitMs, backoff: true, max };
        }
        if (!this._visible || (waitMs === null && !failed)) {
          void this._poll.stop();
        }
      }
    }
  }

  private readonly _poll: Poll<void, unknown, 'refreshed'>;
  private _visible = false;
}
