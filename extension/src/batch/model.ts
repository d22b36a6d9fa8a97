import type { IBatchJob, IBatchRequest, IWorkloadLog } from '../api';
import type { IPushed } from '../common/server-changes';
import { WorkModel } from '../workloads/model';
import type { BatchRequests } from './requests';

/** The user's batch jobs, the newest first. */
export class BatchModel extends WorkModel<IBatchJob> {
  constructor(
    readonly requests: BatchRequests,
    changes: IPushed | null = null
  ) {
    super(changes);
  }

  /** Submit a notebook and update the list; throws an error with a message for the user. */
  async submit(request: IBatchRequest): Promise<string> {
    const { job_id } = await this.requests.submit(request);
    void this.refresh();
    return job_id;
  }

  /** Cancel a job. */
  cancel(jobId: string): Promise<void> {
    return this.act(jobId, () => this.requests.cancel(jobId));
  }

  override isRunning(job: IBatchJob): boolean {
    return job.tasks.some(task => !task.ended);
  }

  protected override readLog(jobId: string): Promise<IWorkloadLog> {
    return this.requests.log(jobId);
  }

  protected override list(): Promise<readonly IBatchJob[]> {
    return this.requests.jobs();
  }
}
