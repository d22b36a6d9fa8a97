import { Signal, type ISignal } from '@lumino/signaling';

import type { IWorkloadLog } from '../api';
import { errorMessage } from '../common/error-message';
import type { IPushed } from '../common/server-changes';
import { ViewPoll } from '../common/view-poll';
import type { IWorkloads } from '../tokens';

const POLL_MS = 3_000;
const REST_MS = 30_000;

/**
 * A list of the user's workloads, requested when the server pushes a change. If it does not push, it is polled while it
 * is visible: often while a workload is running, else rarely.
 */
export abstract class WorkModel<T> implements IWorkloads<T> {
  /** @param changes Changes of the list that the server pushes; null if it is only polled. */
  constructor(changes: IPushed | null = null) {
    this._poll = new ViewPoll('work', () => this._ask(), changes);
  }

  /** Emitted when the list or its state has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The items in display order; null before the first response. */
  get items(): readonly T[] | null {
    return this._items;
  }

  /** The number of items that have not ended. */
  get running(): number {
    return (this._items ?? []).filter(each => this.isRunning(each)).length;
  }

  /** The time of the last response, in milliseconds since 1970. */
  get updatedMs(): number {
    return this._updatedMs;
  }

  /** The last error, in one line; empty if there is none. */
  get error(): string {
    return this._error;
  }

  /** Return true if an item has not ended. */
  abstract isRunning(item: T): boolean;

  /** Return true while an action on an item is in progress. */
  isBusy(id: string): boolean {
    return this._busy.has(id);
  }

  /** Poll while the list is visible. */
  setVisible(visible: boolean): void {
    this._poll.setVisible(visible);
  }

  /** Poll now. */
  refresh(): Promise<void> {
    return this._poll.refresh();
  }

  /** Fetch the items from the server. */
  protected abstract list(): Promise<readonly T[]>;

  /** Run an action on an item, poll, and report the error of the action if it failed. */
  protected async act(id: string, task: () => Promise<void>): Promise<void> {
    this._busy.add(id);
    this.emit();
    let failed: unknown;
    await task().catch((error: unknown) => {
      failed = error;
    });
    this._busy.delete(id);
    await this.refresh();
    if (failed !== undefined) {
      this.fail(failed);
    }
  }

  /** Emit `changed`. */
  protected emit(): void {
    this._changed.emit();
  }

  /** Set `error` and emit `changed`. */
  protected fail(error: unknown): void {
    this._error = errorMessage(error);
    this._changed.emit();
  }

  /** The end of an item's log; null while it is hidden. */
  logOf(id: string): IWorkloadLog | null {
    return this._logs.get(id) ?? null;
  }

  /** Show or hide the log of an item. */
  async toggleLog(id: string): Promise<void> {
    if (!this._logs.delete(id)) {
      try {
        this._logs.set(id, await this.readLog(id));
      } catch (error) {
        this.fail(error);
        return;
      }
    }
    this.emit();
  }

  /** Fetch the end of an item's log. */
  protected readLog(id: string): Promise<IWorkloadLog> {
    return Promise.reject(new Error(`${id} has no log.`));
  }

  private async _ask(): Promise<number | null> {
    try {
      this._items = await this.list();
      // Logs that are shown may grow.
      for (const id of this._logs.keys()) {
        this._logs.set(id, await this.readLog(id));
      }
    } catch (error) {
      this.fail(error);
      throw error;
    }
    this._updatedMs = Date.now();
    this._error = '';
    this.emit();
    return this._poll.pushed ? null : this.running > 0 ? POLL_MS : REST_MS;
  }

  private readonly _poll: ViewPoll;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _logs = new Map<string, IWorkloadLog>();
  private readonly _busy = new Set<string>();
  private _items: readonly T[] | null = null;
  private _updatedMs = 0;
  private _error = '';
}
