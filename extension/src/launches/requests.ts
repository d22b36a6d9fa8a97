import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import type { ILaunch, ILogPage, ILogPosition } from '../api';
import { answerOf } from '../common/request';

/** Rank, text, milliseconds since 1970 or null, whether it is about an error. */
export type LogLine = ILogPage['lines'][number];

/** What a rank leaves for another program. */
export type RankFile = 'trace' | 'dump';

/** The routes below `gipfel/launches`. */
export class LaunchRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** The newest, or with an id that one alone. */
  async list(launch = ''): Promise<readonly ILaunch[]> {
    const query = launch === '' ? '' : URLExt.objectToQueryString({ launch });
    const path = `launches${query}`;
    return (await answerOf<{ launches: readonly ILaunch[] }>(this._settings, path)).launches;
  }

  log(launch: string, position: ILogPosition | null, rank: number | null): Promise<ILogPage> {
    return this._request<ILogPage>('log', 'POST', { launch, position, rank });
  }

  async stop(launch: string): Promise<void> {
    await this._request<unknown>('stop', 'POST', { launch });
  }

  async again(launch: string): Promise<void> {
    await this._request<unknown>('again', 'POST', { launch });
  }

  /** The path at which the executed notebook opens. */
  async notebook(launch: string): Promise<string> {
    return (await this._request<{ path: string }>('notebook', 'POST', { launch })).path;
  }

  /** The address of a rank's file. */
  fileUrl(kind: RankFile, launch: string, rank: number): string {
    const url = URLExt.join(this._settings.baseUrl, 'gipfel', 'launches', kind);
    return url + URLExt.objectToQueryString({ launch, rank: String(rank) });
  }

  private _request<T>(path: string, method: string, body: unknown): Promise<T> {
    return answerOf(this._settings, URLExt.join('launches', path), method, body);
  }
}
