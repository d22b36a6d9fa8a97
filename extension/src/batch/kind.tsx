import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IBatchJob, IBatchRequest } from '../api';
import type { IWorkloadKind } from '../tokens';
import { BatchJob } from './job';
import type { BatchModel } from './model';

/** Create the workload kind of batch notebooks. */
export function batchKind(
  model: BatchModel,
  trans: TranslationBundle,
  open: (path: string) => void,
  rerun: (request: IBatchRequest) => void
): IWorkloadKind<IBatchJob> {
  return {
    id: 'batch',
    title: trans.__('batch notebooks'),
    emptyText: trans.__('Open a notebook and press "Run as batch job" in its toolbar.'),
    workloads: model,
    keyOf: job => job.scheduler + job.job_id,
    createdMs: job => job.time * 1e3,
    render: job => (
      <div className="jp-Gipfel-batch">
        <BatchJob job={job} model={model} trans={trans} open={open} rerun={rerun} />
      </div>
    )
  };
}
