import type { ServerConnection } from '@jupyterlab/services';

import type { ILifetime } from '../api';
import { answerOf } from '../common/request';

/** The routes below `gipfel/lifetime`. */
export class LifetimeRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** When this server ends. */
  lifetime(): Promise<ILifetime> {
    return answerOf<ILifetime>(this._settings, 'lifetime');
  }

  /** Ask for more time. */
  extend(): Promise<ILifetime> {
    return answerOf<ILifetime>(this._settings, 'lifetime/extend', 'POST', {});
  }

  /** Report that this server is wanted although nothing runs. */
  stay(): Promise<ILifetime> {
    return answerOf<ILifetime>(this._settings, 'lifetime/stay', 'POST', {});
  }
}
