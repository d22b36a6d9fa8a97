import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../notice';
import type { ISection } from '../section';
import type { BatchModel } from './model';
import type { IBatchJob, IBatchTask } from './requests';

/** The panel's list of batch notebooks. */
export function batchSection(
  model: BatchModel,
  trans: TranslationBundle,
  open: (path: string) => void
): ISection {
  return {
    id: 'batch',
    title: trans.__('Batch jobs'),
    Summary: (): React.JSX.Element => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <span role="status">{summary(model, trans)}</span>}
      </UseSignal>
    ),
    Body: (): React.JSX.Element => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <BatchList model={model} trans={trans} open={open} />}
      </UseSignal>
    ),
    setVisible: visible => {
      model.setVisible(visible);
    }
  };
}

function summary(model: BatchModel, trans: TranslationBundle): string {
  const open = (model.jobs ?? []).filter(job => job.tasks.some(task => !task.ended)).length;
  return open > 0 ? trans._n('%1 runs', '%1 run', open) : '';
}

function BatchList(props: {
  model: BatchModel;
  trans: TranslationBundle;
  open: (path: string) => void;
}): React.JSX.Element {
  const { model, trans, open } = props;
  return (
    <div className="jp-Gipfel-batch">
      {model.error && <Notice shape="✗" text={model.error} error />}
      {model.jobs === null && !model.error && <p>{trans.__('Asking for your jobs …')}</p>}
      {model.jobs?.length === 0 && (
        <p>{trans.__('None yet: open a notebook and press "Run as batch job" in its toolbar.')}</p>
      )}
      {model.jobs?.map(job => (
        <BatchJob key={job.scheduler + job.job_id} job={job} model={model} trans={trans} open={open} />
      ))}
    </div>
  );
}

function BatchJob(props: {
  job: IBatchJob;
  model: BatchModel;
  trans: TranslationBundle;
  open: (path: string) => void;
}): React.JSX.Element {
  const { job, model, trans, open } = props;
  const runs = job.tasks.some(task => !task.ended);
  return (
    <article data-job={job.job_id}>
      <header>
        <strong>{job.notebook}</strong>
        <span>{job.job_id}</span>
        {runs && (
          <button
            className="jp-Gipfel-button"
            onClick={() => {
              void model.cancel(job.job_id);
            }}
          >
            {trans.__('Cancel')}
          </button>
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

const SHAPES: Readonly<Record<string, string>> = { COMPLETED: '✓', RUNNING: '●', PENDING: '○' };

function BatchTask(props: {
  task: IBatchTask;
  trans: TranslationBundle;
  open: (path: string) => void;
}): React.JSX.Element {
  const { task, trans, open } = props;
  const values = Object.entries(task.values).map(([name, value]) => `${name}=${value}`);
  const cells = task.cells > 0 ? trans.__('%1 of %2 cells', task.done, task.cells) : '';
  const said = [task.node, cells, ...values, task.problem || (task.ended ? '' : task.reason)];
  const { output } = task;
  return (
    <li data-state={task.state}>
      <span>
        <span aria-hidden="true">{SHAPES[task.state] ?? (task.ended ? '✗' : '◐')}</span> {task.state}
      </span>
      <span>{said.filter(each => each !== '').join(' · ')}</span>
      {output !== null && (
        <button
          className="jp-Gipfel-button"
          onClick={() => {
            open(output);
          }}
        >
          {trans.__('Open')}
        </button>
      )}
    </li>
  );
}
