import type { ServerConnection } from '@jupyterlab/services';

import type { ILeaving } from '../api';
import { answerOf } from '../common/request';

/** The routes below `gipfel/leaving`. */
export class LeavingRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** When this server ends. */
  leaving(): Promise<ILeaving> {
    return answerOf<ILeaving>(this._settings, 'leaving');
  }

  /** Ask for more time. */
  extend(): Promise<ILeaving> {
    return answerOf<ILeaving>(this._settings, 'leaving/extend', 'POST', {});
  }

  /** Report that this server is wanted although nothing runs. */
  stay(): Promise<ILeaving> {
    return answerOf<ILeaving>(this._settings, 'leaving/stay', 'POST', {});
  }
}
