import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import { answerOf } from '../common/request';

/** A verdict, or `running`, or `waiting`. */
export type Word =
  'pass' | 'degraded' | 'inconclusive' | 'not_run' | 'not_applicable' | 'fail' | 'running' | 'waiting';

/** One check on one node. */
export interface ICell {
  readonly verdict: Word;
  readonly reason: string;
}

/** One node, with its cells in the order of the checks. */
export interface IRow {
  readonly node: string;
  readonly verdict: Word;
  readonly vetted: boolean;
  readonly running: string;
  readonly cells: readonly ICell[];
}

/** What is wrong with whom. */
export interface ICulprit {
  readonly who: string;
  readonly checks: string;
  readonly verdict: Word;
  readonly reason: string;
  readonly fix: string;
  /** Whose fault it is: node, link, image, protocol or site; an older report does not say. */
  readonly owner?: string;
}

/** A report as far as a page shows it; times in UTC nanoseconds. */
export interface IGrid {
  readonly protocol: string;
  readonly started_ns: number;
  readonly ended_ns: number | null;
  readonly complete: boolean;
  readonly nodes: number;
  readonly vetted: number;
  readonly done: number;
  readonly checks: readonly string[];
  readonly rows: readonly IRow[];
  /** Verdicts of nodes without a row, and how many have each. */
  readonly more: Readonly<Partial<Record<Word, number>>>;
  readonly culprits: readonly ICulprit[];
  readonly more_culprits: number;
  readonly exclude: string;
  readonly outcome: string;
  readonly notes: readonly string[];
}

/** Where the newest vetting of this server's run stands. */
export interface IVetting {
  readonly state: 'none' | 'starting' | 'running' | 'ended' | 'interrupted' | 'gone' | 'error';
  readonly version: string;
  readonly problem: string;
  /** Whether this server has started it, and can stop it. */
  readonly own: boolean;
  readonly heard_ms: number;
  readonly now_ms: number;
  /** Missing where it is the version that was asked about. */
  readonly grid?: IGrid;
}

/** Names a protocol of the list. */
export interface IProtocolPlace {
  readonly kind: 'shipped' | 'own' | 'beside';
  readonly file: string;
}

/** A protocol that can be run. */
export interface IProtocol extends IProtocolPlace {
  readonly name: string;
  readonly description: string;
  readonly problem: string;
}

/** What a text means as a protocol. */
export interface IMeaning {
  readonly valid: boolean;
  readonly problems: readonly string[];
  /** The line that each problem is about, from 1 on; 0 for none. */
  readonly lines: readonly number[];
  readonly checks: readonly { readonly name: string; readonly type: string }[];
}

/** The routes below `gipfel/vetting`. */
export class VettingRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  look(known: string, rows: number): Promise<IVetting> {
    return this._request<IVetting>(URLExt.objectToQueryString({ known, rows: String(rows) }));
  }

  async start(protocol: IProtocolPlace, directory: string, skipVetted: string): Promise<void> {
    const { kind, file } = protocol;
    await this._request('', 'POST', { kind, file, directory, skip_vetted: skipVetted });
  }

  async stop(): Promise<void> {
    await this._request('', 'DELETE');
  }

  protocols(
    directory: string
  ): Promise<{ readonly protocols: readonly IProtocol[]; readonly registry: boolean }> {
    return this._request(`/protocols${URLExt.objectToQueryString({ directory })}`);
  }

  text(protocol: IProtocolPlace, directory: string): Promise<IMeaning & { readonly text: string }> {
    const { kind, file } = protocol;
    return this._request(`/protocols${URLExt.objectToQueryString({ directory, kind, file })}`);
  }

  check(text: string): Promise<IMeaning> {
    return this._request('/protocols', 'POST', { text });
  }

  save(directory: string, name: string, text: string, replace: boolean): Promise<IProtocolPlace> {
    return this._request('/protocols', 'PUT', { directory, name, text, replace });
  }

  async shares(): Promise<boolean> {
    return (await this._request<{ share: boolean }>('/consent')).share;
  }

  async share(share: boolean): Promise<boolean> {
    return (await this._request<{ share: boolean }>('/consent', 'POST', { share })).share;
  }

  private _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    return answerOf(this._settings, `vetting${path}`, method, body);
  }
}
