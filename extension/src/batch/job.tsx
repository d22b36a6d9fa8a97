import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IBatchJob, IBatchTask } from '../api';
import { ActionButton, StateLabel, joinParts } from '../views/elements';
import type { BatchModel } from './model';

const SHAPES: Readonly<Record<string, string>> = { COMPLETED: '✓', RUNNING: '●', PENDING: '○' };

/** A submitted job: its tasks, their progress, and actions. */
export function BatchJob(props: {
  job: IBatchJob;
  model: BatchModel;
  trans: TranslationBundle;
  open: (path: string) => void;
}): React.JSX.Element {
  const { job, model, trans, open } = props;
  return (
    <article data-job={job.job_id}>
      <header>
        <strong>{job.notebook}</strong>
        <span>{job.job_id}</span>
        {model.isRunning(job) && (
          <ActionButton
            text={trans.__('Cancel')}
            item={`${job.job_id} ${job.notebook}`}
            busy={model.isBusy(job.job_id)}
            onClick={() => void model.cancel(job.job_id)}
          />
        )}
      </header>
      <ul>
        {job.tasks.map(task => (
          <BatchTask key={task.job_id} task={task} trans={trans} open={open} />
        ))}
      </ul>
      {job.more > 0 && <p>{trans.__('and %1 more', job.more)}</p>}
    </article>
  );
}

function BatchTask(props: {
  task: IBatchTask;
  trans: TranslationBundle;
  open: (path: string) => void;
}): React.JSX.Element {
  const { task, trans, open } = props;
  const values = Object.entries(task.values).map(([name, value]) => `${name}=${value}`);
  const cells = task.cells > 0 ? trans.__('%1 of %2 cells', task.done, task.cells) : '';
  const { output } = task;
  return (
    <li data-state={task.state}>
      <StateLabel shape={SHAPES[task.state] ?? (task.ended ? '✗' : '◐')}>
        {task.state.toLowerCase().replaceAll('_', ' ')}
      </StateLabel>
      <span>{joinParts([task.node, cells, ...values, task.problem || (task.ended ? '' : task.reason)])}</span>
      {output !== null && (
        <ActionButton
          text={trans.__('Open')}
          item={task.job_id}
          onClick={() => {
            open(output);
          }}
        />
      )}
    </li>
  );
}
