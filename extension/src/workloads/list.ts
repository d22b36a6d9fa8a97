import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import type * as React from 'react';

import type { IGipfelWorkloads, IWorkloadKind } from '../tokens';

/** A workload in the list. */
export interface IWorkloadRow {
  readonly key: string;
  readonly kind: string;
  readonly running: boolean;
  readonly createdMs: number;
  readonly render: () => React.JSX.Element;
}

/** A kind without the type of its items. */
interface IKind extends Pick<IWorkloadKind<unknown>, 'id' | 'title' | 'emptyText' | 'Footer'> {
  readonly error: () => string;
  /** Null before the first response. */
  readonly rows: () => readonly IWorkloadRow[] | null;
  readonly setVisible: (visible: boolean) => void;
}

/** The workloads of all kinds, or of the chosen one: running ones first, then the newest. */
export class WorkloadList implements IGipfelWorkloads {
  /** Emitted when a kind, its workloads or the choice has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** All kinds, in the order in which they were added. */
  get kinds(): readonly IKind[] {
    return this._kinds;
  }

  /** The chosen kinds: one or all. */
  get shownKinds(): readonly IKind[] {
    const chosen = this._kinds.filter(each => each.id === this._chosen);
    return chosen.length > 0 ? chosen : this._kinds;
  }

  /** The ID of the chosen kind; empty for all. */
  get chosen(): string {
    return this._chosen;
  }

  /** The workloads of the chosen kinds; null before all have responded, unless one has workloads. */
  get rows(): readonly IWorkloadRow[] | null {
    const found = this.shownKinds.map(each => each.rows());
    const rows = found.flatMap(each => each ?? []);
    if (rows.length === 0 && found.includes(null)) {
      return null;
    }
    return rows.sort((a, b) => Number(b.running) - Number(a.running) || b.createdMs - a.createdMs);
  }

  /** The number of workloads of all kinds that have not ended. */
  get running(): number {
    return this._kinds.flatMap(each => each.rows() ?? []).filter(each => each.running).length;
  }

  /** Show one kind; an empty ID shows all. */
  choose(kind: string): void {
    this._chosen = kind;
    this._changed.emit();
  }

  /** Poll all kinds while the list is visible. */
  setVisible(visible: boolean): void {
    this._visible = visible;
    for (const each of this._kinds) {
      each.setVisible(visible);
    }
  }

  addKind<T>(kind: IWorkloadKind<T>): IDisposable {
    const { id, title, emptyText, Footer, workloads } = kind;
    if (this._kinds.some(each => each.id === id)) {
      throw new Error(`The list already has a kind '${id}'.`);
    }
    const added: IKind = {
      id,
      title,
      emptyText,
      Footer,
      error: () => workloads.error,
      rows: () => workloads.items?.map(item => rowOf(kind, item)) ?? null,
      setVisible: visible => {
        workloads.setVisible(visible);
      }
    };
    const onChange = (): void => {
      this._changed.emit();
    };
    workloads.changed.connect(onChange);
    this._kinds = [...this._kinds, added];
    added.setVisible(this._visible);
    this._changed.emit();
    return new DisposableDelegate(() => {
      workloads.changed.disconnect(onChange);
      added.setVisible(false);
      this._kinds = this._kinds.filter(each => each !== added);
      this._changed.emit();
    });
  }

  private readonly _changed = new Signal<this, void>(this);
  private _kinds: readonly IKind[] = [];
  private _chosen = '';
  private _visible = false;
}

function rowOf<T>(kind: IWorkloadKind<T>, item: T): IWorkloadRow {
  return {
    key: `${kind.id}:${kind.keyOf(item)}`,
    kind: kind.id,
    running: kind.workloads.isRunning(item),
    createdMs: kind.createdMs(item),
    render: () => kind.render(item)
  };
}
