import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IComparison, IRunName, ISaturationStatus, IScore, ITimeRange, IView } from '../api';
import { requestJson, socketUrl } from '../common/request';

/** A time range of a run: an empty name is the current run, a null time the beginning or the end of the run. */
export interface IRangeQuery {
  readonly run: string;
  readonly sinceMs: number | null;
  readonly untilMs: number | null;
  /** The last seconds up to the newest sample, instead of two times. */
  readonly lastS: number | null;
}

/** Requests to `gipfel/saturation` and to the routes of runs, sources and sharing. */
export class SaturationRequests {
  constructor(readonly settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {}

  /** Record a simulated source in addition to the real ones. */
  startSource(source: string): Promise<ISaturationStatus> {
    return this._request<ISaturationStatus>('telemetry/source', 'POST', { source });
  }

  /** Stop the simulated source. */
  stopSource(): Promise<ISaturationStatus> {
    return this._request<ISaturationStatus>('telemetry/source', 'DELETE');
  }

  /** Return true if the score is shared with administrators. */
  async shares(): Promise<boolean> {
    return (await this._request<{ saturation: boolean }>('sharing')).saturation;
  }

  /** Share the score with administrators, or stop that. */
  async share(saturation: boolean): Promise<boolean> {
    return (await this._request<{ saturation: boolean }>('sharing', 'POST', { saturation })).saturation;
  }

  /** Return the user's runs, the newest first. */
  async runs(): Promise<readonly IRunName[]> {
    return (await this._request<{ runs: readonly IRunName[] }>('runs')).runs;
  }

  /** Return a time range of a run. */
  stretch(query: IRangeQuery, view: IView): Promise<ITimeRange> {
    const path = `saturation/range${stretchWords(query)}&dark=${view.dark ? 1 : 0}`;
    return this._request<ITimeRange>(`${path}&metric=${encodeURIComponent(view.metric)}${listWords(view)}`);
  }

  /** Return the score of a time range, which may take seconds for a long one. */
  score(query: IRangeQuery): Promise<IScore> {
    return this._request<IScore>(`saturation/score${stretchWords(query)}`);
  }

  /** Compare two runs; an empty name is this server's run. */
  compare(first: string, second: string, dark: boolean): Promise<IComparison> {
    const query = URLExt.objectToQueryString({ first, second, dark: dark ? '1' : '0' });
    return this._request<IComparison>(`saturation/compare${query}`);
  }

  /** Return the URL of a time range as a file. */
  fileUrl(query: IRangeQuery, kind: 'parquet' | 'csv' | 'png'): string {
    const name = kind === 'png' ? 'figure.png' : `samples.${kind}`;
    return URLExt.join(this.settings.baseUrl, 'gipfel', 'saturation', name) + stretchWords(query);
  }

  /** Return the URL of the stream. */
  streamUrl(view: IView): string {
    const query = { window: String(view.window), dark: view.dark ? '1' : '0', metric: view.metric };
    return socketUrl(this.settings, 'saturation/stream', query) + listWords(view);
  }

  private _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    return requestJson(this.settings, path, method, body);
  }
}

function listWords(view: IView): string {
  const words = [
    ...view.gpus.map(uuid => `&gpu=${encodeURIComponent(uuid)}`),
    ...view.gauges.map(metric => `&gauge=${metric}`)
  ];
  return words.join('');
}

function stretchWords(query: IRangeQuery): string {
  const given: Record<string, string> = { run: query.run };
  if (query.sinceMs !== null) {
    given.since = String(Math.round(query.sinceMs));
  }
  if (query.untilMs !== null) {
    given.until = String(Math.round(query.untilMs));
  }
  if (query.lastS !== null) {
    given.last = String(query.lastS);
  }
  return URLExt.objectToQueryString(given);
}

/** Return true if two statuses look the same in the panel. */
export function sameStatus(a: ISaturationStatus | null, b: ISaturationStatus): boolean {
  return a?.state === b.state && a.simulated === b.simulated && a.gpus === b.gpus && a.message === b.message;
}
