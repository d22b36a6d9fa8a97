import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import type { IRunComparison, IRunTracking, ITableRow } from '../api';
import { requestJson } from '../common/request';

/** Maximum number of runs in the table. */
const MAX_RUNS = 1000;

/** Notes of a run; a missing field is not changed. */
export interface INotesChange {
  readonly display_name?: string;
  readonly tags?: readonly string[];
  readonly note?: string;
  readonly pinned?: boolean;
}

/** The result of a removal; runs that are pinned or in use are kept. */
export interface IRemoval {
  readonly removed: readonly string[];
  readonly kept: readonly { readonly run: string; readonly reason: string }[];
}

/** Requests to `gipfel/runs`. */
export class RunRequests {
  constructor(readonly settings: ServerConnection.ISettings) {}

  /** Return the runs, the newest last. */
  async list(): Promise<readonly ITableRow[]> {
    const path = `runs/table?limit=${MAX_RUNS}`;
    return (await requestJson<{ runs: readonly ITableRow[] }>(this.settings, path)).runs;
  }

  async change(run: string, changes: INotesChange): Promise<void> {
    await requestJson(this.settings, 'runs/notes', 'POST', { run, ...changes });
  }

  remove(runs: readonly string[]): Promise<IRemoval> {
    return requestJson(this.settings, 'runs/remove', 'POST', { runs });
  }

  /** Compare runs with the first one. */
  compare(runs: readonly string[]): Promise<IRunComparison> {
    const query = runs.map(each => `run=${encodeURIComponent(each)}`).join('&');
    return requestJson(this.settings, `runs/compare?${query}`);
  }

  /** Return where a run is on an MLflow server. */
  tracking(run: string): Promise<IRunTracking> {
    return requestJson(this.settings, `runs/track?run=${encodeURIComponent(run)}`);
  }

  /** Start to send a run to an MLflow server; without an address, to the configured one. */
  track(run: string, to: string): Promise<IRunTracking> {
    return requestJson(this.settings, 'runs/track', 'POST', { run, to });
  }

  /** Return the path of a run's report below the server's base URL. */
  reportPath(run: string): string {
    return `gipfel/runs/${encodeURIComponent(run)}/report`;
  }

  /** Return the link to a run's report, for users who may access this server. */
  reportLink(run: string): string {
    return new URL(URLExt.join(this.settings.baseUrl, this.reportPath(run)), window.location.href).href;
  }
}
