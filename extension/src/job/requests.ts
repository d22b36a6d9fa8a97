import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import type {
  IEarlierRuns,
  IJobCluster,
  IJobDocument,
  IJobFigures,
  IJobStorage,
  IJobVerdicts,
  ILookList,
  ILookPlan
} from '../api';
import { requestJson } from '../common/request';

/** The answer if nothing has changed since the version that the page has. */
export interface IUnchanged {
  readonly version: string;
  readonly unchanged: true;
}

/** A job, as the server's routes take it. */
export interface IJobQuery {
  readonly run: string;
  readonly launch: string;
  readonly layout: string;
}

/** What is to be drawn of a job. */
export interface IFiguresQuery extends IJobQuery {
  readonly sinceMs: number | null;
  readonly untilMs: number | null;
  /** The seconds up to the newest sample in place of two times. */
  readonly lastS: number | null;
  readonly select: string;
  readonly pick: string;
  readonly order: string;
  readonly metric: string;
  readonly names: readonly string[];
  readonly bands: readonly string[];
  readonly figures: readonly string[];
  readonly dark: boolean;
  /** Pixels of a figure. */
  readonly width: number;
}

/** What ranks of a launch are asked for; `ranks` is a selection, empty for the suspected ranks, a peer and rank 0. */
export interface ILookQuery {
  readonly launch: string;
  readonly what: string;
  readonly ranks: string;
}

/** Requests to `gipfel/job`, and to look into ranks. */
export class JobRequests {
  constructor(readonly settings: ServerConnection.ISettings) {}

  document(query: IJobQuery, have: string): Promise<IJobDocument | IUnchanged> {
    return requestJson(this.settings, `job${jobWords(query, have)}`);
  }

  verdicts(query: IJobQuery, have: string): Promise<IJobVerdicts | IUnchanged> {
    return requestJson(this.settings, `job/verdicts${jobWords(query, have)}`);
  }

  /** Return the cluster around a run. */
  cluster(run: string): Promise<IJobCluster> {
    return requestJson(this.settings, `job/cluster${URLExt.objectToQueryString({ run })}`);
  }

  /** Return a run's steps beside those of the named runs, or of those that the server chooses. */
  earlier(run: string, beside: string): Promise<IEarlierRuns> {
    return requestJson(this.settings, `job/earlier${URLExt.objectToQueryString({ run, beside })}`);
  }

  /** Return what a run read and wrote. */
  storage(run: string): Promise<IJobStorage> {
    return requestJson(this.settings, `job/storage${URLExt.objectToQueryString({ run })}`);
  }

  /** Return the looks into ranks of a launch, the newest first. */
  looks(launch: string): Promise<ILookList> {
    return requestJson(this.settings, `launches/looks${URLExt.objectToQueryString({ launch })}`);
  }

  /** Return which ranks a look would ask, and what it costs. */
  lookPlan(query: ILookQuery): Promise<ILookPlan> {
    return requestJson(this.settings, `launches/looks/plan${URLExt.objectToQueryString({ ...query })}`);
  }

  async startLook(query: ILookQuery & { readonly steps?: number; readonly seconds?: number }): Promise<void> {
    await requestJson<unknown>(this.settings, 'launches/looks', 'POST', query);
  }

  /** Return the URL of what a rank wrote; without a rank that of the flame graph. */
  lookFile(launch: string, id: string, rank: number | null): string {
    const own = rank === null ? {} : { rank: String(rank) };
    const url = URLExt.join(this.settings.baseUrl, 'gipfel', 'launches/looks/file');
    return url + URLExt.objectToQueryString({ launch, id, ...own });
  }

  figures(query: IFiguresQuery, have: string): Promise<IJobFigures | IUnchanged> {
    const { select, pick, order, metric, sinceMs, untilMs, lastS } = query;
    const width = String(Math.max(200, Math.round(query.width)));
    const words = { select, pick, order, metric, width, dark: query.dark ? '1' : '0' };
    const times = Object.entries({ since: sinceMs, until: untilMs, last: lastS }).flatMap(([name, time]) =>
      time === null ? [] : [[name, String(Math.round(time))] as const]
    );
    const several = { name: query.names, band: query.bands, figure: query.figures };
    const lists = Object.entries(several).flatMap(([name, values]) =>
      values.map(value => `&${name}=${encodeURIComponent(value)}`)
    );
    const own = URLExt.objectToQueryString({ ...words, ...Object.fromEntries(times) }).replace('?', '&');
    return requestJson(this.settings, `job/figures${jobWords(query, have)}${own}${lists.join('')}`);
  }
}

function jobWords(query: IJobQuery, have: string): string {
  const given: Record<string, string> = { run: query.run, layout: query.layout, have };
  if (query.launch !== '') {
    given.launch = query.launch;
  }
  return URLExt.objectToQueryString(given);
}
