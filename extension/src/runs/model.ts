import { Signal, type ISignal } from '@lumino/signaling';

import type { IRunComparison, IRunTracking, ITableRow } from '../api';
import { errorMessage } from '../common/error-message';
import { ViewPoll } from '../common/view-poll';
import type { IOrder } from './columns';
import type { INotesChange, RunRequests } from './requests';

/** Age from which the list is fetched again when it becomes visible. */
const FRESH_MS = 10_000;
/** Interval at which the server is asked while runs are sent to MLflow. */
const SENDING_MS = 1_000;
/** Largest number of runs that the server compares or removes at once. */
export const MAX_COMPARED = 20;
export const MAX_REMOVED = 100;

/** The model of the table of runs: the fetched runs and the user's selection, shared by all views. */
export class RunsModel {
  constructor(readonly requests: RunRequests) {
    this._sending = new ViewPoll('tracking', () => this._askSending());
  }

  /** Emitted when anything below has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Null before the first response. */
  runs: readonly ITableRow[] | null = null;
  order: IOrder = { column: 'modified', descending: true };
  filter = '';
  /** Names of the runs to compare or to delete, in the order in which they were selected. */
  selected: readonly string[] = [];
  /** Name of the run whose details are open. */
  opened = '';
  comparison: IRunComparison | null = null;
  /** Errors of the last action, and why runs were kept. */
  problems: readonly string[] = [];
  busy = false;
  /** Where runs are on an MLflow server, by name. */
  trackings: ReadonlyMap<string, IRunTracking> = new Map();
  /** The address that the user gave last. */
  lastAddress = '';

  /** Fetch the runs if the list is not recent. */
  setVisible(visible: boolean): void {
    if (visible && Date.now() - this._fetchedMs > FRESH_MS) {
      void this.refresh();
    }
  }

  refresh(): Promise<void> {
    return this._attempt(() => this._fetch());
  }

  /** Set the state that exists only on this page: order, filter, selection or the open run. */
  set(values: Partial<Pick<RunsModel, 'order' | 'filter' | 'selected' | 'opened' | 'comparison'>>): void {
    Object.assign(this, values);
    this._changed.emit();
  }

  /** Select a run, or deselect it. */
  toggle(name: string): void {
    const without = this.selected.filter(each => each !== name);
    this.set({ selected: without.length < this.selected.length ? without : [...without, name] });
  }

  /** Select the runs before the newest ones, except those pinned, tagged or in use; return their number. */
  selectOld(keep: number): number {
    const older = [...(this.runs ?? [])].sort((one, other) => other.modified - one.modified).slice(keep);
    const old = older.filter(each => !each.pinned && each.tags.length === 0 && each.in_use_reason === '');
    const selected = old.map(each => each.name).slice(-MAX_REMOVED);
    this.set({ selected });
    return selected.length;
  }

  change(name: string, changes: INotesChange): Promise<void> {
    return this._attempt(async () => {
      await this.requests.change(name, changes);
      await this._fetch();
    });
  }

  /** Remove the selected runs, unless they are pinned or in use. */
  removeSelected(): Promise<void> {
    return this._attempt(async () => {
      const { kept } = await this.requests.remove(this.selected.slice(0, MAX_REMOVED));
      await this._fetch();
      this.problems = kept.map(({ run, reason }) => `${run} was kept: ${reason}.`);
    });
  }

  /** Compare the selected runs with the one that was selected first. */
  compareSelected(): Promise<void> {
    return this._attempt(async () => {
      this.comparison = await this.requests.compare(this.selected);
    });
  }

  /** Fetch where a run is on an MLflow server. */
  async fetchTracking(name: string): Promise<void> {
    try {
      this._setTracking(name, await this.requests.tracking(name));
    } catch (error) {
      this._fail(error);
    }
  }

  /** Send a run to an MLflow server; throws an error with a message for the user. */
  async track(name: string, to: string): Promise<void> {
    this._setTracking(name, await this.requests.track(name, to));
    this.lastAddress = to || this.lastAddress;
  }

  private _setTracking(name: string, tracking: IRunTracking): void {
    this.trackings = new Map([...this.trackings, [name, tracking]]);
    const sends = [...this.trackings.values()].some(each => each.sending_s !== null);
    if (sends !== this._sending.visible) {
      this._sending.setVisible(sends);
    }
    this._changed.emit();
  }

  private async _askSending(): Promise<number> {
    const sent = [...this.trackings].filter(([, each]) => each.sending_s !== null);
    await Promise.all(
      sent.map(async ([name]) => {
        this._setTracking(name, await this.requests.tracking(name));
      })
    );
    return SENDING_MS;
  }

  private _fail(error: unknown): void {
    this.problems = [errorMessage(error)];
    this._changed.emit();
  }

  private async _fetch(): Promise<void> {
    const runs = await this.requests.list();
    this._fetchedMs = Date.now();
    this.runs = runs;
    const names = new Set(runs.map(each => each.name));
    this.selected = this.selected.filter(each => names.has(each));
  }

  private async _attempt(action: () => Promise<void>): Promise<void> {
    this.busy = true;
    this.problems = [];
    this._changed.emit();
    try {
      await action();
    } catch (error) {
      this.problems = [errorMessage(error)];
    }
    this.busy = false;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _sending: ViewPoll;
  private _fetchedMs = 0;
}
