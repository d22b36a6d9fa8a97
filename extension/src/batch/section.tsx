import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ISection } from '../tokens';
import { workSection } from '../work/section';
import { BatchJob } from './job';
import type { BatchModel } from './model';

/** Create the section that lists batch jobs. */
export function batchSection(
  model: BatchModel,
  trans: TranslationBundle,
  open: (path: string) => void
): ISection {
  return workSection(model, trans, {
    id: 'batch',
    title: trans.__('Batch jobs'),
    loadingText: trans.__('Loading your jobs…'),
    emptyText: trans.__('None yet: open a notebook and press "Run as batch job" in its toolbar.'),
    keyOf: job => job.scheduler + job.job_id,
    render: job => <BatchJob job={job} model={model} trans={trans} open={open} />
  });
}
