import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IComparison, IRunName, ISaturationStatus, IScore, ITimeRange, IView } from '../api';
import { answerOf } from '../common/request';

/** A stretch of a run: the newest one's name is empty, a time that is null is the run's own end. */
export interface IStretchQuery {
  readonly run: string;
  readonly sinceMs: number | null;
  readonly untilMs: number | null;
}

/** The routes below `gipfel/saturation`, and those of runs, sources and sharing. */
export class SaturationRequests {
  constructor(readonly settings: ServerConnection.ISettings = ServerConnection.makeSettings()) {}

  /** Record a simulated source beside the real ones. */
  startSource(source: string): Promise<ISaturationStatus> {
    return this._request<ISaturationStatus>('telemetry/source', 'POST', { source });
  }

  /** End the simulated source. */
  stopSource(): Promise<ISaturationStatus> {
    return this._request<ISaturationStatus>('telemetry/source', 'DELETE');
  }

  /** Whether administrators may see how well the GPUs are used. */
  async shares(): Promise<boolean> {
    return (await this._request<{ saturation: boolean }>('sharing')).saturation;
  }

  /** Let them see it, or no longer. */
  async share(saturation: boolean): Promise<boolean> {
    return (await this._request<{ saturation: boolean }>('sharing', 'POST', { saturation })).saturation;
  }

  /** The user's runs, the newest first. */
  async runs(): Promise<readonly IRunName[]> {
    return (await this._request<{ runs: readonly IRunName[] }>('runs')).runs;
  }

  /** A stretch of a run as it was. */
  stretch(query: IStretchQuery, view: IView): Promise<ITimeRange> {
    const path = `saturation/range${stretchWords(query)}&dark=${view.dark ? 1 : 0}`;
    const gpus = view.gpus.map(uuid => `&gpu=${encodeURIComponent(uuid)}`).join('');
    return this._request<ITimeRange>(`${path}&metric=${encodeURIComponent(view.metric)}${gpus}`);
  }

  /** The score of a stretch; of a long one it takes a while. */
  score(query: IStretchQuery): Promise<IScore> {
    return this._request<IScore>(`saturation/score${stretchWords(query)}`);
  }

  /** Two runs side by side; an empty name is this server's own. */
  compare(first: string, second: string, dark: boolean): Promise<IComparison> {
    const query = URLExt.objectToQueryString({ first, second, dark: dark ? '1' : '0' });
    return this._request<IComparison>(`saturation/compare${query}`);
  }

  /** Where a stretch is to be had as a file. */
  fileUrl(query: IStretchQuery, kind: 'parquet' | 'csv' | 'png'): string {
    const name = kind === 'png' ? 'figure.png' : `samples.${kind}`;
    return URLExt.join(this.settings.baseUrl, 'gipfel', 'saturation', name) + stretchWords(query);
  }

  /** The address of the stream. */
  streamUrl(view: IView): string {
    const query: Record<string, string> = {
      window: String(view.window),
      dark: view.dark ? '1' : '0',
      metric: view.metric
    };
    // Only across origins: on the server's own page the cookie speaks, and an address ends up in logs.
    if (this.settings.appendToken && this.settings.token) {
      query.token = this.settings.token;
    }
    const address = URLExt.join(this.settings.wsUrl, 'gipfel', 'saturation', 'stream');
    const gpus = view.gpus.map(uuid => `&gpu=${encodeURIComponent(uuid)}`).join('');
    return address + URLExt.objectToQueryString(query) + gpus;
  }

  private _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    return answerOf(this.settings, path, method, body);
  }
}

function stretchWords(query: IStretchQuery): string {
  const given: Record<string, string> = { run: query.run };
  if (query.sinceMs !== null) {
    given.since = String(Math.round(query.sinceMs));
  }
  if (query.untilMs !== null) {
    given.until = String(Math.round(query.untilMs));
  }
  return URLExt.objectToQueryString(given);
}
