import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import type { IBatchForm, IBatchJob, IBatchRequest, IWorkloadLog } from '../api';
import { requestJson } from '../common/request';
import { requestLog } from '../workloads/other';

/** Requests to the routes below `gipfel/batch`. */
export class BatchRequests {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  form(path: string): Promise<IBatchForm> {
    return this._request<IBatchForm>(`form${URLExt.objectToQueryString({ path })}`);
  }

  async jobs(): Promise<readonly IBatchJob[]> {
    return (await this._request<{ jobs: readonly IBatchJob[] }>('jobs')).jobs;
  }

  submit(request: IBatchRequest): Promise<{ job_id: string; tasks: number }> {
    return this._request<{ job_id: string; tasks: number }>('jobs', 'POST', request);
  }

  async cancel(jobId: string): Promise<void> {
    await this._request<unknown>(`jobs/${encodeURIComponent(jobId)}`, 'DELETE');
  }

  /** Return the last lines of a job's log, of all its tasks. */
  log(jobId: string): Promise<IWorkloadLog> {
    return requestLog(this._settings, 'batch', jobId);
  }

  private _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    return requestJson(this._settings, `batch/${path}`, method, body);
  }
}
