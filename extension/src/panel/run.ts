import type { ServerConnection } from '@jupyterlab/services';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IRunInfo } from '../api';
import { answerOf } from '../common/request';

/** What this notebook server runs in, as it was when it was last asked. */
export class RunModel {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** Emitted with every answer. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last answer; null where the server does not answer. */
  get run(): IRunInfo | null {
    return this._run;
  }

  /** Ask now; who asks while a request is under way shares its answer. */
  refresh(): Promise<void> {
    this._asking ??= this._ask().finally(() => {
      this._asking = null;
    });
    return this._asking;
  }

  private async _ask(): Promise<void> {
    // Where the server does not answer, the sections say so.
    this._run = await answerOf<IRunInfo>(this._settings, 'run').catch(() => null);
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _run: IRunInfo | null = null;
  private _asking: Promise<void> | null = null;
}
