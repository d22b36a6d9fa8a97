import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IOtherWorkload, IOtherWorkloads, IWorkloadLog } from '../api';
import { requestJson } from '../common/request';
import type { IPushed } from '../common/server-changes';
import type { IWorkloadKind } from '../tokens';
import { ActionButton, StateLabel, joinParts } from '../views/elements';
import { WorkModel } from './model';

const SHAPES: Readonly<Record<string, string>> = { completed: '✓', running: '●', stopped: '■' };

/** Workloads of the kinds that have no view of their own, such as those of other packages. */
export class OtherWorkloadsModel extends WorkModel<IOtherWorkload> {
  constructor(
    private readonly _settings: ServerConnection.ISettings,
    changes: IPushed | null = null
  ) {
    super(changes);
  }

  /** Return the last lines of the log that is shown; null if it is hidden. */
  logOf(workload: IOtherWorkload): IWorkloadLog | null {
    return this._logs.get(keyOf(workload)) ?? null;
  }

  /** Show or hide the log of a workload. */
  async toggleLog(workload: IOtherWorkload): Promise<void> {
    if (this._logs.delete(keyOf(workload))) {
      this.emit();
      return;
    }
    try {
      await this._readLog(workload);
      this.emit();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Request that a workload ends. */
  stop(workload: IOtherWorkload): Promise<void> {
    return this._post('stop', workload);
  }

  /** Start a workload again. */
  rerun(workload: IOtherWorkload): Promise<void> {
    return this._post('rerun', workload);
  }

  override isRunning(workload: IOtherWorkload): boolean {
    return !workload.ended;
  }

  protected override async list(): Promise<readonly IOtherWorkload[]> {
    const { workloads } = await requestJson<IOtherWorkloads>(this._settings, 'workloads');
    const shown = workloads.filter(each => this._logs.has(keyOf(each)));
    await Promise.all(shown.map(each => this._readLog(each)));
    return workloads;
  }

  private async _readLog(workload: IOtherWorkload): Promise<void> {
    const { kind, id } = workload;
    const query = URLExt.objectToQueryString({ kind, id });
    this._logs.set(keyOf(workload), await requestJson(this._settings, `workloads/log${query}`));
  }

  private _post(action: 'rerun' | 'stop', workload: IOtherWorkload): Promise<void> {
    const { kind, id } = workload;
    return this.act(keyOf(workload), async () => {
      await requestJson(this._settings, `workloads/${action}`, 'POST', { kind, id });
    });
  }

  private readonly _logs = new Map<string, IWorkloadLog>();
}

/** Create the entry of the list that shows these workloads. */
export function otherKind(
  model: OtherWorkloadsModel,
  trans: TranslationBundle
): IWorkloadKind<IOtherWorkload> {
  return {
    id: 'other',
    title: trans.__('other kinds'),
    emptyText: '',
    workloads: model,
    keyOf,
    createdMs: workload => workload.created_ns / 1e6,
    render: workload => <OtherWorkload workload={workload} model={model} trans={trans} />
  };
}

function keyOf({ kind, id }: IOtherWorkload): string {
  return `${kind}:${id}`;
}

interface IProps {
  readonly workload: IOtherWorkload;
  readonly model: OtherWorkloadsModel;
  readonly trans: TranslationBundle;
}

function OtherWorkload(props: IProps): React.JSX.Element {
  const { workload, model, trans } = props;
  const { state, reason, nodes } = workload;
  const log = model.logOf(workload);
  return (
    <article data-workload={keyOf(workload)} data-state={state}>
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
      {log && (
        <pre className="jp-Gipfel-work-log" tabIndex={0} aria-label={trans.__('Log of %1', itemOf(workload))}>
          {log.lines.map(line => line.text).join('\n') || trans.__('Nothing has been written yet.')}
        </pre>
      )}
    </article>
  );
}

function Actions({ workload, model, trans }: IProps): React.JSX.Element {
  const [item, busy] = [itemOf(workload), model.isBusy(keyOf(workload))];
  const [text, run] = workload.ended
    ? [trans.__('Run again'), () => model.rerun(workload)]
    : [trans.__('Stop'), () => model.stop(workload)];
  return (
    <>
      <ActionButton
        text={trans.__('Log')}
        item={item}
        pressed={model.logOf(workload) !== null}
        onClick={() => void model.toggleLog(workload)}
      />
      <ActionButton text={text} item={item} busy={busy} onClick={() => void run()} />
    </>
  );
}

function itemOf({ kind, id }: IOtherWorkload): string {
  return `${kind} ${id}`;
}
