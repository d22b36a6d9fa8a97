import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { ILeaving, IRunInfo, ISaturationStatus } from './tokens';

/** The routes of our server extension. */
export class GipfelRequests {
  constructor(readonly settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {}

  /** What this notebook server runs in. */
  run(): Promise<IRunInfo> {
    return this._request<IRunInfo>('run');
  }

  /** Record a simulated source beside the real ones. */
  startSource(source: string): Promise<ISaturationStatus> {
    return this._request<ISaturationStatus>('telemetry/source', 'POST', { source });
  }

  /** End the simulated source. */
  stopSource(): Promise<ISaturationStatus> {
    return this._request<ISaturationStatus>('telemetry/source', 'DELETE');
  }

  /** When this server ends. */
  leaving(): Promise<ILeaving> {
    return this._request<ILeaving>('leaving');
  }

  /** Ask for more time. */
  extend(): Promise<ILeaving> {
    return this._request<ILeaving>('leaving/extend', 'POST', {});
  }

  /** Say that this server is wanted although nothing runs. */
  stay(): Promise<ILeaving> {
    return this._request<ILeaving>('leaving/stay', 'POST', {});
  }

  /** Copy a shipped notebook to where the user can change it, and say where that is. */
  async copyNotebook(name: string): Promise<string> {
    const { path } = await this._request<{ path: string }>(
      `notebooks/${encodeURIComponent(name)}`,
      'POST',
      {}
    );
    return path;
  }

  /** The address of the stream. */
  streamUrl(windowS: number, dark: boolean): string {
    const query: Record<string, string> = { window: String(windowS), dark: dark ? '1' : '0' };
    // Only across origins: on the server's own page the cookie speaks, and an address ends up in logs.
    if (this.settings.appendToken && this.settings.token) {
      query.token = this.settings.token;
    }
    const address = URLExt.join(this.settings.wsUrl, 'gipfel', 'saturation', 'stream');
    return address + URLExt.objectToQueryString(query);
  }

  private async _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    const init: RequestInit = { method };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    const url = URLExt.join(this.settings.baseUrl, 'gipfel', path);
    const response = await ServerConnection.makeRequest(url, init, this.settings);
    const answer = (await response.json().catch(() => null)) as (T & { message?: string }) | null;
    if (!response.ok || answer === null) {
      throw new Error(answer?.message ?? `The notebook server answered ${response.status} to ${path}.`);
    }
    return answer;
  }
}
