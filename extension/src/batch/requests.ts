import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';

import { answerOf } from '../common/request';

/** A parameter as the notebook's cell writes it. */
export interface IParameter {
  readonly name: string;
  readonly type: string;
  readonly default: string;
  readonly help: string;
}

/** What the dialog shows for a notebook. */
export interface IBatchForm {
  readonly parameters: readonly IParameter[];
  /** Whether nobody can read the notebook's language, so that any name may be right. */
  readonly open: boolean;
  /** Where a job runs by default, and where it can run. */
  readonly scheduler: string;
  readonly schedulers: readonly string[];
  readonly edf: string;
  readonly edfs: readonly string[];
  readonly output: string;
}

/** What is asked for; an empty text is for the default. */
export interface IBatchRequest {
  readonly path: string;
  readonly output: string;
  readonly parameters: Readonly<Record<string, string>>;
  readonly grid: Readonly<Record<string, string>>;
  readonly scheduler: string;
  readonly edf: string;
  readonly nodes: number;
  readonly gpus_per_node: number;
  readonly time: string;
  readonly partition: string;
  readonly account: string;
  readonly resume: boolean;
}

/** One run of a batch notebook. */
export interface IBatchTask {
  readonly job_id: string;
  readonly state: string;
  readonly ended: boolean;
  readonly reason: string;
  readonly node: string;
  readonly values: Readonly<Record<string, string>>;
  readonly cells: number;
  readonly done: number;
  readonly problem: string;
  /** The server's path of the executed notebook, which may still run; null where there is none to open. */
  readonly output: string | null;
}

/** A job that was submitted. */
export interface IBatchJob {
  readonly job_id: string;
  readonly scheduler: string;
  readonly notebook: string;
  /** Seconds since 1970. */
  readonly time: number;
  readonly tasks: readonly IBatchTask[];
  /** How many tasks are not listed. */
  readonly more: number;
}

/** The routes below `gipfel/batch`. */
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

  private _request<T>(path: string, method = 'GET', body?: unknown): Promise<T> {
    return answerOf(this._settings, `batch/${path}`, method, body);
  }
}
