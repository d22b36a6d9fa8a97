import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IBatchJob, IBatchRequest, IBatchTask } from '../api';
import { ActionButton, StateLabel, joinParts } from '../views/elements';
import { durationText } from '../views/launch/summary';
import { WorkloadLog } from '../workloads/other';
import type { BatchModel } from './model';

const SHAPES: Readonly<Record<string, string>> = { COMPLETED: '✓', RUNNING: '●', PENDING: '○' };

/** A submitted job: its tasks, their progress, and actions. */
export function BatchJob(props: {
  job: IBatchJob;
  model: BatchModel;
  trans: TranslationBundle;
  open: (path: string) => void;
  /** Shows the dialog with the values of a job. */
  rerun: (request: IBatchRequest) => void;
}): React.JSX.Element {
  const { job, model, trans, open, rerun } = props;
  const { request } = job;
  const item = `${job.job_id} ${job.notebook}`;
  return (
    <article data-job={job.job_id}>
      <header>
        <strong>{job.notebook}</strong>
        <span>{job.job_id}</span>
        <ActionButton
          text={trans.__('Log')}
          item={item}
          pressed={model.logOf(job.job_id) !== null}
          onClick={() => void model.toggleLog(job.job_id)}
        />
        {request && (
          <ActionButton
            text={trans.__('Run again …')}
            item={item}
            onClick={() => {
              rerun(request);
            }}
          />
        )}
        {model.isRunning(job) && (
          <ActionButton
            text={trans.__('Cancel')}
            item={item}
            busy={model.isBusy(job.job_id)}
            onClick={() => void model.cancel(job.job_id)}
          />
        )}
      </header>
      <ul>
        {job.tasks.map(task => (
          <BatchTask key={task.job_id} task={task} nowMs={model.updatedMs} trans={trans} open={open} />
        ))}
      </ul>
      {job.more > 0 && <p>{trans.__('and %1 more', job.more)}</p>}
      <WorkloadLog log={model.logOf(job.job_id)} item={item} trans={trans} />
    </article>
  );
}

function BatchTask(props: {
  task: IBatchTask;
  nowMs: number;
  trans: TranslationBundle;
  open: (path: string) => void;
}): React.JSX.Element {
  const { task, nowMs, trans, open } = props;
  const values = Object.entries(task.values).map(([name, value]) => `${name}=${value}`);
  const cells = task.cells > 0 ? trans.__('%1 of %2 cells', task.done, task.cells) : '';
  const { output, started, score } = task;
  const seconds = task.seconds ?? (started === null || task.ended ? null : nowMs / 1e3 - started);
  const duration = seconds === null ? '' : durationText(seconds);
  const scored = score === null ? '' : trans.__('score %1 of 100', Math.round(score));
  const reason = task.problem || (task.ended ? '' : task.reason);
  return (
    <li data-state={task.state}>
      <StateLabel shape={SHAPES[task.state] ?? (task.ended ? '✗' : '◐')}>
        {task.state.toLowerCase().replaceAll('_', ' ')}
      </StateLabel>
      <span>{joinParts([task.node, duration, cells, scored, ...values, reason])}</span>
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
