import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ISection } from '../tokens';
import { workSection } from '../work/section';
import { BatchJob } from './job';
import type { BatchModel } from './model';

/** The panel's list of batch notebooks. */
export function batchSection(
  model: BatchModel,
  trans: TranslationBundle,
  open: (path: string) => void
): ISection {
  return workSection(model, trans, {
    id: 'batch',
    title: trans.__('Batch jobs'),
    asking: trans.__('Asking for your jobs …'),
    none: trans.__('None yet: open a notebook and press "Run as batch job" in its toolbar.'),
    keyOf: job => job.scheduler + job.job_id,
    show: job => <BatchJob job={job} model={model} trans={trans} open={open} />
  });
}
