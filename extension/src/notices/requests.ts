import type { ServerConnection } from '@jupyterlab/services';

import type { ILifetime } from '../api';
import { requestJson } from '../common/request';

/** Requests to the routes below `gipfel/lifetime`. */
export class LifetimeRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** Return the time at which this server ends. */
  lifetime(): Promise<ILifetime> {
    return requestJson<ILifetime>(this._settings, 'lifetime');
  }

  /** Request more time. */
  extend(): Promise<ILifetime> {
    return requestJson<ILifetime>(this._settings, 'lifetime/extend', 'POST', {});
  }

  /** Report that this server is still in use although it is idle. */
  keepAlive(): Promise<ILifetime> {
    return requestJson<ILifetime>(this._settings, 'lifetime/keep-alive', 'POST', {});
  }
}
