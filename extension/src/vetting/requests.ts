import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import type { IProtocolListing, IProtocolContent, IVetting } from '../api';
import { requestJson } from '../common/request';

/** Identifies a protocol of the list. */
export type ProtocolRef = Pick<IProtocolListing, 'kind' | 'file'>;

/** Requests to the routes below `gipfel/vetting`. */
export class VettingRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  look(known: string, rows: number): Promise<IVetting> {
    return this._request<IVetting>(URLExt.objectToQueryString({ known, rows: String(rows) }));
  }

  async start(protocol: ProtocolRef, directory: string, skipVetted: string): Promise<void> {
    const { kind, file } = protocol;
    await this._request('', 'POST', { kind, file, directory, skip_vetted: skipVetted });
  }

  async stop(): Promise<void> {
    await this._request('', 'DELETE');
  }

  protocols(
    directory: string
  ): Promise<{ readonly protocols: readonly IProtocolListing[]; readonly registry: boolean }> {
    return this._request(`/protocols${URLExt.objectToQueryString({ directory })}`);
  }

  text(protocol: ProtocolRef, directory: string): Promise<IProtocolContent & { readonly text: string }> {
    const { kind, file } = protocol;
    return this._request(`/protocols${URLExt.objectToQueryString({ directory, kind, file })}`);
  }

  check(text: string): Promise<IProtocolContent> {
    return this._request('/protocols', 'POST', { text });
  }

  save(directory: string, name: string, text: string, replace: boolean): Promise<ProtocolRef> {
    return this._request('/protocols', 'PUT', { directory, name, text, replace });
  }

  async shares(): Promise<boolean> {
    return (await this._request<{ share: boolean }>('/consent')).share;
  }

  async share(share: boolean): Promise<boolean> {
    return (await this._request<{ share: boolean }>('/consent', 'POST', { share })).share;
  }

  private _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    return requestJson(this._settings, `vetting${path}`, method, body);
  }
}
