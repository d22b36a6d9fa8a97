import type { ServerConnection } from '@jupyterlab/services';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IRunInfo } from '../api';
import { requestJson } from '../common/request';

/** The run that this notebook server belongs to, as last fetched. */
export class RunModel {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** Emitted with every response. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last response; null if the server does not respond. */
  get run(): IRunInfo | null {
    return this._run;
  }

  /** Fetch now; concurrent calls share one request. */
  refresh(): Promise<void> {
    this._asking ??= this._ask().finally(() => {
      this._asking = null;
    });
    return this._asking;
  }

  private async _ask(): Promise<void> {
    // The sections report that the server does not respond.
    this._run = await requestJson<IRunInfo>(this._settings, 'run').catch(() => null);
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _run: IRunInfo | null = null;
  private _asking: Promise<void> | null = null;
}
