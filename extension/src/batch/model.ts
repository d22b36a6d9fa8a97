import { Signal, type ISignal } from '@lumino/signaling';

import type { BatchRequests, IBatchJob, IBatchRequest } from './requests';

const POLL_MS = 3_000;
const REST_MS = 30_000;

/** The user's batch notebooks, asked for while somebody looks. */
export class BatchModel {
  constructor(readonly requests: BatchRequests) {}

  /** Emitted when the list or the error has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The newest first; null before the first answer. */
  get jobs(): readonly IBatchJob[] | null {
    return this._jobs;
  }

  /** Why there is no new answer, in one line; empty where there is one. */
  get error(): string {
    return this._error;
  }

  /** Ask while the list is seen, and rest while it is not. */
  setVisible(visible: boolean): void {
    this._visible = visible;
    window.clearTimeout(this._timer);
    if (visible) {
      void this.refresh();
    }
  }

  /** Ask now. */
  async refresh(): Promise<void> {
    window.clearTimeout(this._timer);
    try {
      this._jobs = await this.requests.jobs();
      this._error = '';
    } catch (error) {
      this._error = error instanceof Error ? error.message : String(error);
    }
    this._changed.emit();
    if (this._visible) {
      const open = this._jobs?.some(job => job.tasks.some(task => !task.ended)) ?? false;
      window.clearTimeout(this._timer);
      this._timer = window.setTimeout(() => void this.refresh(), open ? POLL_MS : REST_MS);
    }
  }

  /** Submit a notebook and show it in the list; raises with one line for people. */
  async submit(request: IBatchRequest): Promise<string> {
    const { job_id } = await this.requests.submit(request);
    void this.refresh();
    return job_id;
  }

  /** End a job. */
  async cancel(jobId: string): Promise<void> {
    try {
      await this.requests.cancel(jobId);
    } catch (error) {
      this._error = error instanceof Error ? error.message : String(error);
      this._changed.emit();
      return;
    }
    await this.refresh();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _jobs: readonly IBatchJob[] | null = null;
  private _error = '';
  private _visible = false;
  private _timer = 0;
}
