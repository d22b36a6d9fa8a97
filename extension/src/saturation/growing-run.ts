import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

/** Interval at which the run folder is read; its recorder writes every few seconds. */
const INTERVAL_MS = 5_000;

/** Silently re-polls a growing run while the panel is visible. */
export class GrowingRun implements IDisposable {
  constructor(read: () => Promise<void>) {
    this._poll = new Poll({
      auto: false,
      name: '@gipfel/extension:growing-run',
      frequency: { interval: INTERVAL_MS, backoff: false, max: INTERVAL_MS },
      standby: () => !this.visible,
      factory: read
    });
  }

  /** True while the run is being recorded. */
  growing = false;

  /** True while the panel is visible. */
  visible = false;

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Schedule the next read if the run is growing. */
  schedule(): void {
    if (this.growing) {
      void this._poll.schedule({ interval: INTERVAL_MS, phase: 'started' });
    } else {
      this.stop();
    }
  }

  /** Cancel the next read. */
  stop(): void {
    void this._poll.stop();
  }

  dispose(): void {
    this._poll.dispose();
  }

  private readonly _poll: Poll;
}
