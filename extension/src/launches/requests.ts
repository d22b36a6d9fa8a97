import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import type { ILaunch, ILogPage, ILogPosition } from '../api';
import { requestJson } from '../common/request';
import type { RankFile } from '../views/launch/files';

/** Requests to the routes below `gipfel/launches`. */
export class LaunchRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** Return the newest launches, or only the one with an ID. */
  async list(launch = ''): Promise<readonly ILaunch[]> {
    const query = launch === '' ? '' : URLExt.objectToQueryString({ launch });
    const path = `launches${query}`;
    return (await requestJson<{ launches: readonly ILaunch[] }>(this._settings, path)).launches;
  }

  log(launch: string, position: ILogPosition | null, rank: number | null): Promise<ILogPage> {
    return this._request<ILogPage>('log', 'POST', { launch, position, rank });
  }

  async stop(launch: string): Promise<void> {
    await this._request<unknown>('stop', 'POST', { launch });
  }

  async rerun(launch: string): Promise<void> {
    await this._request<unknown>('rerun', 'POST', { launch });
  }

  /** Return the path of the executed notebook. */
  async notebook(launch: string): Promise<string> {
    return (await this._request<{ path: string }>('notebook', 'POST', { launch })).path;
  }

  /** Return the URL of a file of a rank. */
  fileUrl(kind: RankFile, launch: string, rank: number): string {
    const url = URLExt.join(this._settings.baseUrl, 'gipfel', 'launches', kind);
    return url + URLExt.objectToQueryString({ launch, rank: String(rank) });
  }

  private _request<T>(path: string, method: string, body: unknown): Promise<T> {
    return requestJson(this._settings, URLExt.join('launches', path), method, body);
  }
}
