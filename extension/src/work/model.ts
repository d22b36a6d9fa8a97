import { Signal, type ISignal } from '@lumino/signaling';

import { lineOf } from '../common/error-line';
import { ViewPoll } from '../common/view-poll';

const POLL_MS = 3_000;
const REST_MS = 30_000;

/** Work that the user has started, asked for while somebody looks: often while some of it runs, else seldom. */
export abstract class WorkModel<T> {
  /** Emitted when anything that is shown has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** All of it, in the order in which it is listed; null before the first answer. */
  get items(): readonly T[] | null {
    return this._items;
  }

  /** How many of them have not ended. */
  get running(): number {
    return (this._items ?? []).filter(each => this.runs(each)).length;
  }

  /** When the last answer came, in milliseconds since 1970. */
  get askedMs(): number {
    return this._askedMs;
  }

  /** Why there is no new answer, or what was not done, in one line; empty where all is well. */
  get error(): string {
    return this._error;
  }

  /** Whether one has not ended. */
  abstract runs(item: T): boolean;

  /** Whether one was asked to do what it has not done yet. */
  isBusy(id: string): boolean {
    return this._busy.has(id);
  }

  /** Ask while the list is visible, and rest while it is not. */
  setVisible(visible: boolean): void {
    this._poll.setVisible(visible);
  }

  /** Ask now. */
  refresh(): Promise<void> {
    return this._poll.refresh();
  }

  /** Ask the server for all of it. */
  protected abstract list(): Promise<readonly T[]>;

  /** Have one do something, look what came of it, and say what went wrong. */
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

  /** Say that something has changed. */
  protected emit(): void {
    this._changed.emit();
  }

  /** Say what went wrong. */
  protected fail(error: unknown): void {
    this._error = lineOf(error);
    this._changed.emit();
  }

  private async _ask(): Promise<number> {
    try {
      this._items = await this.list();
    } catch (error) {
      this.fail(error);
      throw error;
    }
    this._askedMs = Date.now();
    this._error = '';
    this.emit();
    return this.running > 0 ? POLL_MS : REST_MS;
  }

  private readonly _poll = new ViewPoll('work', () => this._ask());
  private readonly _changed = new Signal<this, void>(this);
  private readonly _busy = new Set<string>();
  private _items: readonly T[] | null = null;
  private _askedMs = 0;
  private _error = '';
}
