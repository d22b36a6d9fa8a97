import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IGpuActivity } from '../api';
import type { ServerChanges } from '../common/server-changes';

/** The activity of the GPUs, which the server pushes every few seconds while the page is visible. */
export class ActivityModel implements IDisposable {
  constructor(private readonly _changes: ServerChanges) {
    _changes.of('activity').changed.connect(this._onChanged);
  }

  /** Emitted when the activity has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last activity; null while the server does not respond. */
  get activity(): IGpuActivity | null {
    return this._changes.activity;
  }

  /** True if there is a GPU to show. */
  get active(): boolean {
    return (this.activity?.gpus ?? 0) > 0;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    this._changes.of('activity').changed.disconnect(this._onChanged);
    Signal.clearData(this);
  }

  private readonly _onChanged = (): void => {
    this._changed.emit();
  };

  private readonly _changed = new Signal<this, void>(this);
  private _disposed = false;
}
