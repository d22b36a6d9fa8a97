import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import { answerOf } from '../common/request';

/** A launch, as the server's `glance` describes it. */
export interface ILaunch {
  /** `RUN/N`, or `N` of a launch outside of runs. */
  readonly id: string;
  readonly number: number;
  readonly name: string;
  readonly title: string;
  /** The outcome once it has ended, else the phase; `silent` where nothing was heard of it for long. */
  readonly word: string;
  readonly phase: string;
  /** Why it failed or waits, as one sentence. */
  readonly says: string;
  readonly ranks: number;
  readonly node_count: number;
  readonly restarts: number;
  readonly created_ns: number;
  readonly started_ns: number | null;
  readonly ended_ns: number | null;
  readonly progress: {
    readonly step: number | null;
    readonly total: number | null;
    readonly fraction: number | null;
  };
  readonly course: {
    readonly rate: number | null;
    readonly rate_name: string;
    readonly steps_per_s: number | null;
  };
  readonly notebook: boolean;
  /** Ranks that left a trace of torch's profiler. */
  readonly traces: readonly number[];
  /** Ranks that left a dump of torch's flight recorder. */
  readonly dumps: readonly number[];
}

/** Rank, text, milliseconds since 1970 or null, whether it is about an error. */
export type LogLine = readonly [number, string, number | null, boolean];

/** What a rank leaves for another program. */
export type RankFile = 'trace' | 'dump';

/** How far a log has been read; the server's own business. */
export type LogPosition = Readonly<Record<string, unknown>>;

/** A piece of a log. */
export interface ILogPage {
  readonly lines: readonly LogLine[];
  readonly position: LogPosition;
  readonly more: boolean;
  readonly ended: boolean;
  /** What torch's flight recorder says. */
  readonly flight: readonly string[];
}

/** The routes below `gipfel/launches`. */
export class LaunchRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** The newest, or with an id that one alone. */
  async list(launch = ''): Promise<readonly ILaunch[]> {
    const query = launch === '' ? '' : URLExt.objectToQueryString({ launch });
    const path = `launches${query}`;
    return (await answerOf<{ launches: readonly ILaunch[] }>(this._settings, path)).launches;
  }

  log(launch: string, position: LogPosition | null, rank: number | null): Promise<ILogPage> {
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
