import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

/** A run that is recorded elsewhere is read from its folder; its recorder writes every few seconds. */
const AGAIN_MS = 5_000;

/** Silently reads a growing run again while the panel is visible. */
export class GrowingRun implements IDisposable {
  constructor(read: () => Promise<void>) {
    this._poll = new Poll({
      auto: false,
      name: '@gipfel/extension:growing-run',
      frequency: { interval: AGAIN_MS, backoff: false, max: AGAIN_MS },
      standby: () => !this.visible,
      factory: read
    });
  }

  /** Whether the run grows. */
  growing = false;

  /** Whether the panel is visible. */
  visible = false;

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Read it later, where there will be more. */
  later(): void {
    if (this.growing) {
      void this._poll.schedule({ interval: AGAIN_MS, phase: 'started' });
    } else {
      this.stop();
    }
  }

  /** Wait no longer. */
  stop(): void {
    void this._poll.stop();
  }

  dispose(): void {
    this._poll.dispose();
  }

  private readonly _poll: Poll;
}
