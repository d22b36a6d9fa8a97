import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IGpuActivity } from '../api';

const POLL_MS = 5_000;
const LONGEST_RETRY_MS = 60_000;

/** The activity of the GPUs, polled every few seconds while the page is visible. */
export class ActivityModel implements IDisposable {
  constructor(ask: () => Promise<IGpuActivity>) {
    this._poll = new Poll({
      name: '@gipfel/extension:status-bar',
      frequency: { interval: POLL_MS, backoff: true, max: LONGEST_RETRY_MS },
      standby: 'when-hidden',
      factory: async () => {
        try {
          this._set(await ask());
        } catch (error) {
          // Otherwise an old value would look current.
          this._set(null);
          throw error;
        }
      }
    });
  }

  /** Emitted with every response. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last response; null while the server does not respond. */
  get activity(): IGpuActivity | null {
    return this._activity;
  }

  /** Whether there is a GPU to show. */
  get active(): boolean {
    return (this._activity?.gpus ?? 0) > 0;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  dispose(): void {
    this._poll.dispose();
    Signal.clearData(this);
  }

  private _set(activity: IGpuActivity | null): void {
    this._activity = activity;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _poll: Poll;
  private _activity: IGpuActivity | null = null;
}
