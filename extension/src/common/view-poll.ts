import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

const FIRST_MS = 1_000;
const LONGEST_RETRY_MS = 30_000;

/** Asks the server again and again while a view is visible, and more slowly while the server does not answer. */
export class ViewPoll implements IDisposable {
  /**
   * @param name Of the poll, without the extension's.
   * @param ask Asks once; returns the milliseconds until the next time, or null for not before the next `refresh`.
   */
  constructor(
    name: string,
    private readonly _ask: () => Promise<number | null>
  ) {
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

  /** Whether the view is visible. */
  get visible(): boolean {
    return this._visible;
  }

  /** Ask now and keep asking while the view is visible; rest while it is not. */
  setVisible(visible: boolean): void {
    this._visible = visible;
    if (visible) {
      void this.refresh();
    } else {
      void this._poll.stop();
    }
  }

  /** Ask now, also while the view is hidden, and resolve when there is an answer or an error. */
  async refresh(): Promise<void> {
    // Not `Poll.refresh`, which shares the answer of a request that began before what the user did.
    await this._poll.schedule({ interval: Poll.IMMEDIATE, phase: 'refreshed' });
    // It is rejected when the poll is disposed.
    await this._poll.tick.catch(() => undefined);
  }

  /** Ask next in so many milliseconds. */
  wait(ms: number): void {
    if (this._visible) {
      void this._poll.schedule({ interval: ms, phase: 'standby' });
    }
  }

  dispose(): void {
    this._poll.dispose();
  }

  private async _turn(): Promise<void> {
    const { tick } = this._poll;
    let waitMs: number | null = null;
    let failed = true;
    try {
      waitMs = await this._ask();
      failed = false;
    } finally {
      // Otherwise another request has begun meanwhile, and decides what comes next.
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
