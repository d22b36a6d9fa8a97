import { Signal, type ISignal } from '@lumino/signaling';

import type { IDevice, IEvidence, IView } from '../api';
import type { ITimeSpan } from '../views/figures/plot';

/** Number of GPUs whose plots are shown before the user selects any. */
const MAX_DEFAULT_GPUS = 2;

/** The run, time span, GPUs and metric that the user has selected. */
export class ViewSelection {
  /** Emitted when the selection has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The name of the run; empty for this server's run. */
  get runName(): string {
    return this._runName;
  }

  /** The time span; null for the last seconds or the whole run. */
  get timeSpan(): ITimeSpan | null {
    return this._timeSpan;
  }

  /** True for the live window of this server's run. */
  get live(): boolean {
    return this._runName === '' && this._timeSpan === null && this._lastS !== null;
  }

  /** The evidence of an advice to highlight. */
  get evidence(): IEvidence | null {
    return this._evidence;
  }

  get metric(): string {
    return this._metric;
  }

  get windowS(): number {
    return this._windowS;
  }

  /** The seconds up to the newest sample that are shown without a time span; null for the whole run. */
  get lastS(): number | null {
    return this._lastS;
  }

  get dark(): boolean {
    return this._dark;
  }

  /** True to show the plots of all GPUs, not of the selected ones. */
  get all(): boolean {
    return this._all;
  }

  /** The GPUs of the run, by node and index. */
  get gpus(): readonly IDevice[] {
    return this._gpus;
  }

  /** UUIDs of the GPUs whose plots are shown. */
  get selected(): readonly string[] {
    return this._all ? this._gpus.map(gpu => gpu.uuid) : this._selected;
  }

  /** Return the view to request from the server: only GPUs that are in view. */
  view(): IView {
    const gpus = this.selected.filter(uuid => this._inView.has(uuid));
    const gauges = [...this._gauges.keys()];
    return { type: 'view', window: this._windowS, dark: this._dark, metric: this._metric, gpus, gauges };
  }

  /** Set the devices of the run; the first GPUs are selected unless the user has selected others. */
  setDevices(devices: readonly IDevice[]): void {
    this._gpus = devices
      .filter(device => device.kind === 'gpu')
      .sort((a, b) => a.node.localeCompare(b.node) || (a.index ?? 0) - (b.index ?? 0));
    if (!this._chosen) {
      const few = this._gpus.length <= MAX_DEFAULT_GPUS;
      this._selected = this._gpus.slice(0, few ? MAX_DEFAULT_GPUS : 1).map(gpu => gpu.uuid);
    }
  }

  /** Set the dark or the light theme. */
  setDark(dark: boolean): void {
    if (dark !== this._dark) {
      this._dark = dark;
      this._changed.emit();
    }
  }

  /** Show the last seconds of the run, live if it is this server's; null for the whole run. */
  setLast(seconds: number | null): void {
    if (seconds !== this._lastS || this._timeSpan) {
      this._lastS = seconds;
      this._windowS = seconds ?? this._windowS;
      this._setTimeSpan(null, null);
    }
  }

  /** Show a time span of the run. */
  setTimeSpan(span: ITimeSpan, evidence: IEvidence | null = null): void {
    const device = evidence?.device ?? '';
    if (!this.selected.includes(device) && this._gpus.some(gpu => gpu.uuid === device)) {
      this._selected = [device];
      this._chosen = true;
    }
    this._setTimeSpan(span, evidence);
  }

  /** Show the last seconds or the whole run, as before the time span. */
  clearTimeSpan(): void {
    this._setTimeSpan(null, null);
  }

  /** Show another run; an empty name is this server's run. */
  setRun(name: string): void {
    this._runName = name;
    this._lastS = name === '' ? this._windowS : null;
    this._gpus = [];
    this._selected = [];
    this._chosen = false;
    this._setTimeSpan(null, null);
  }

  /** Set the metric of the heat map. */
  setMetric(metric: string): void {
    this._metric = metric;
    this._changed.emit();
  }

  /** Show or hide the plots of a GPU. */
  toggleGpu(uuid: string): void {
    const before = this.selected;
    this._chosen = true;
    this._all = false;
    this._selected = before.includes(uuid) ? before.filter(each => each !== uuid) : [...before, uuid];
    this._changed.emit();
  }

  /** Show the plots of a GPU and scroll to them. */
  revealGpu(uuid: string): void {
    this._revealed = uuid;
    if (this.selected.includes(uuid)) {
      this._changed.emit();
    } else {
      this.toggleGpu(uuid);
    }
  }

  /** Return true once after `revealGpu`: the plots of the GPU are to be scrolled into view. */
  consumeReveal(uuid: string): boolean {
    const revealed = this._revealed === uuid;
    if (revealed) {
      this._revealed = '';
    }
    return revealed;
  }

  /** Toggle between the plots of all GPUs and those of the selected ones. */
  toggleAll(): void {
    this._all = !this._all;
    this._changed.emit();
  }

  /** Set whether the plots of a GPU are in view in one of the views; only then they are requested. */
  setInView(uuid: string, view: object, inView: boolean): void {
    if (setMember(this._inView, uuid, view, inView)) {
      this._changed.emit();
    }
  }

  /** Set whether the figure of one metric is shown in one of the views; only then it is requested. */
  setGauge(metric: string, view: object, shown: boolean): void {
    if (setMember(this._gauges, metric, view, shown)) {
      this._changed.emit();
    }
  }

  private _setTimeSpan(span: ITimeSpan | null, evidence: IEvidence | null): void {
    this._timeSpan = span;
    this._evidence = evidence;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _inView = new Map<string, Set<object>>();
  private readonly _gauges = new Map<string, Set<object>>();
  private _gpus: readonly IDevice[] = [];
  private _selected: readonly string[] = [];
  private _chosen = false;
  private _revealed = '';
  private _all = false;
  private _runName = '';
  private _timeSpan: ITimeSpan | null = null;
  private _evidence: IEvidence | null = null;
  private _metric = 'SM_ACTIVE';
  private _windowS = 600;
  private _lastS: number | null = 600;
  private _dark = false;
}

/** Add a view to those of a key or remove it; return true if the key was added or removed. */
function setMember(members: Map<string, Set<object>>, key: string, view: object, shown: boolean): boolean {
  const views = members.get(key) ?? new Set();
  const before = views.size;
  if (shown) {
    views.add(view);
  } else {
    views.delete(view);
  }
  if (views.size === 0) {
    members.delete(key);
  } else {
    members.set(key, views);
  }
  return before > 0 !== views.size > 0;
}
