import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IWorkload, IOtherWorkloads, IWorkloadLog } from '../api';
import { requestJson } from '../common/request';
import type { IPushed } from '../common/server-changes';
import type { IWorkloadKind } from '../tokens';
import { ActionButton, StateLabel, joinParts } from '../views/elements';
import { WorkModel } from './model';

const SHAPES: Readonly<Record<string, string>> = { completed: '✓', running: '●', stopped: '■' };

/** Return the last lines of a workload's log. */
export function requestLog(
  settings: ServerConnection.ISettings,
  kind: string,
  id: string
): Promise<IWorkloadLog> {
  return requestJson(settings, `workloads/log${URLExt.objectToQueryString({ kind, id })}`);
}

/** The end of a log, if it is shown. */
export function WorkloadLog(props: {
  log: IWorkloadLog | null;
  item: string;
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { log, item, trans } = props;
  return (
    log && (
      <pre className="jp-Gipfel-work-log" tabIndex={0} aria-label={trans.__('Log of %1', item)}>
        {log.lines.map(line => line.text).join('\n') || trans.__('Nothing has been written yet.')}
      </pre>
    )
  );
}

/** Workloads of the kinds that have no view of their own, such as those of other packages. */
export class OtherWorkloadsModel<T extends IWorkload = IWorkload> extends WorkModel<T> {
  constructor(
    protected readonly settings: ServerConnection.ISettings,
    changes: IPushed | null = null
  ) {
    super(changes);
  }

  /** Request that a workload ends. */
  stop(workload: IWorkload): Promise<void> {
    return this._post('stop', workload);
  }

  /** Start a workload again. */
  rerun(workload: IWorkload): Promise<void> {
    return this._post('rerun', workload);
  }

  override isRunning(workload: T): boolean {
    return !workload.ended;
  }

  protected override list(): Promise<readonly T[]> {
    return this.listWorkloads();
  }

  /** Request the workloads. */
  protected async listWorkloads(): Promise<readonly T[]> {
    const { workloads } = await requestJson<IOtherWorkloads>(this.settings, 'workloads');
    return workloads as readonly T[];
  }

  protected override readLog(key: string): Promise<IWorkloadLog> {
    const [kind = '', id = ''] = key.split(/:(.*)/);
    return requestLog(this.settings, kind, id);
  }

  private _post(action: 'rerun' | 'stop', workload: IWorkload): Promise<void> {
    const { kind, id } = workload;
    return this.act(keyOfWorkload(workload), async () => {
      await requestJson(this.settings, `workloads/${action}`, 'POST', { kind, id });
    });
  }
}

/** Create the entry of the list that shows these workloads. */
export function otherKind(model: OtherWorkloadsModel, trans: TranslationBundle): IWorkloadKind<IWorkload> {
  return {
    id: 'other',
    title: trans.__('other kinds'),
    emptyText: '',
    workloads: model,
    keyOf: keyOfWorkload,
    createdMs: workload => workload.created_ns / 1e6,
    render: workload => <OtherWorkload workload={workload} model={model} trans={trans} />
  };
}

/** Return a key that identifies a workload among those of all kinds. */
export function keyOfWorkload({ kind, id }: IWorkload): string {
  return `${kind}:${id}`;
}

interface IProps<T extends IWorkload = IWorkload> {
  readonly workload: T;
  readonly model: OtherWorkloadsModel<T>;
  readonly trans: TranslationBundle;
  /** Buttons and lines of the workload's kind. */
  readonly buttons?: React.ReactNode;
  readonly children?: React.ReactNode;
}

/** One workload with its state, the last lines of its log, and the buttons that end or rerun it. */
export function OtherWorkload<T extends IWorkload>(props: IProps<T>): React.JSX.Element {
  const { workload, model, trans } = props;
  const { state, reason, nodes } = workload;
  const log = model.logOf(keyOfWorkload(workload));
  return (
    <article data-workload={keyOfWorkload(workload)} data-state={state}>
      <header>
        <strong>{workload.title || workload.name || itemOf(workload)}</strong>
        <span>{itemOf(workload)}</span>
        <Actions {...props} />
      </header>
      <p>
        <StateLabel shape={SHAPES[state] ?? (workload.ended ? '✗' : '◐')}>
          {state.replaceAll('_', ' ')}
        </StateLabel>{' '}
        {joinParts([nodes.join(', '), reason])}
      </p>
      {!workload.ended && workload.progress !== null && (
        <progress
          max={1}
          value={workload.progress}
          aria-label={trans.__('Progress of %1', itemOf(workload))}
        />
      )}
      {props.children}
      <WorkloadLog log={log} item={itemOf(workload)} trans={trans} />
    </article>
  );
}

function Actions<T extends IWorkload>(props: IProps<T>): React.JSX.Element {
  const { workload, model, trans } = props;
  const [item, busy] = [itemOf(workload), model.isBusy(keyOfWorkload(workload))];
  const [text, run] = workload.ended
    ? [trans.__('Run again'), () => model.rerun(workload)]
    : [trans.__('Stop'), () => model.stop(workload)];
  return (
    <>
      {props.buttons}
      <ActionButton
        text={trans.__('Log')}
        item={item}
        pressed={model.logOf(keyOfWorkload(workload)) !== null}
        onClick={() => void model.toggleLog(keyOfWorkload(workload))}
      />
      <ActionButton text={text} item={item} busy={busy} onClick={() => void run()} />
    </>
  );
}

function itemOf({ kind, id }: IWorkload): string {
  return `${kind} ${id}`;
}
