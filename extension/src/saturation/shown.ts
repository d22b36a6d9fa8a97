import { Signal, type ISignal } from '@lumino/signaling';

import type { IDevice, IEvidence, IView } from '../api';
import type { ISpan } from '../figures/plot';

/** So many GPUs are shown one by one unless somebody chooses others. */
const MOST_SHOWN = 2;

/** What somebody chose to look at: which run, which stretch of it, which GPUs, which metric. */
export class Shown {
  /** Emitted when something else is to be shown. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The run; empty for this server's own. */
  get runName(): string {
    return this._runName;
  }

  /** The stretch; null while the window moves, and for the whole of another run. */
  get span(): ISpan | null {
    return this._span;
  }

  /** Whether what is shown moves on by itself. */
  get live(): boolean {
    return this._runName === '' && this._span === null;
  }

  /** The stretch that an advice points at. */
  get evidence(): IEvidence | null {
    return this._evidence;
  }

  get metric(): string {
    return this._metric;
  }

  get windowS(): number {
    return this._windowS;
  }

  get dark(): boolean {
    return this._dark;
  }

  /** Whether every GPU has its plots, rather than those that were chosen. */
  get all(): boolean {
    return this._all;
  }

  /** The GPUs that there are, by node and index. */
  get gpus(): readonly IDevice[] {
    return this._gpus;
  }

  /** UUIDs of the GPUs that are shown one by one. */
  get selected(): readonly string[] {
    return this._all ? this._gpus.map(gpu => gpu.uuid) : this._selected;
  }

  /** What the server is asked for: of the GPUs only those in view. */
  view(): IView {
    const gpus = this.selected.filter(uuid => this._inView.has(uuid));
    return { type: 'view', window: this._windowS, dark: this._dark, metric: this._metric, gpus };
  }

  /** Take in which GPUs there are; the first are shown unless somebody chose others. */
  setDevices(devices: readonly IDevice[]): void {
    this._gpus = devices
      .filter(device => device.kind === 'gpu')
      .sort((a, b) => a.node.localeCompare(b.node) || (a.index ?? 0) - (b.index ?? 0));
    if (!this._chosen) {
      const few = this._gpus.length <= MOST_SHOWN;
      this._selected = this._gpus.slice(0, few ? MOST_SHOWN : 1).map(gpu => gpu.uuid);
    }
  }

  /** Draw for a dark page, or for a light one. */
  setDark(dark: boolean): void {
    if (dark !== this._dark) {
      this._dark = dark;
      this._changed.emit();
    }
  }

  /** Set the time span in seconds, and let it move. */
  setWindow(seconds: number): void {
    if (seconds !== this._windowS || this._span) {
      this._windowS = seconds;
      this._setSpan(null, null);
    }
  }

  /** Show a stretch of the run. */
  setSpan(span: ISpan, evidence: IEvidence | null = null): void {
    const device = evidence?.device ?? '';
    if (!this.selected.includes(device) && this._gpus.some(gpu => gpu.uuid === device)) {
      this._selected = [device];
      this._chosen = true;
    }
    this._setSpan(span, evidence);
  }

  /** Show the moving window of this run again, or the whole of another. */
  setWhole(): void {
    this._setSpan(null, null);
  }

  /** Show another run; an empty name is this server's own. */
  setRun(name: string): void {
    this._runName = name;
    this._gpus = [];
    this._selected = [];
    this._chosen = false;
    this._setSpan(null, null);
  }

  /** Choose the heat map's metric. */
  setMetric(metric: string): void {
    this._metric = metric;
    this._changed.emit();
  }

  /** Show a GPU's plots, or take them away. */
  toggleGpu(uuid: string): void {
    const before = this.selected;
    this._chosen = true;
    this._all = false;
    this._selected = before.includes(uuid) ? before.filter(each => each !== uuid) : [...before, uuid];
    this._changed.emit();
  }

  /** Show a GPU's plots and bring them into sight. */
  revealGpu(uuid: string): void {
    this._revealed = uuid;
    if (this.selected.includes(uuid)) {
      this._changed.emit();
    } else {
      this.toggleGpu(uuid);
    }
  }

  /** Whether a GPU's plots are to be brought into sight now; asked once. */
  takeRevealed(uuid: string): boolean {
    const revealed = this._revealed === uuid;
    if (revealed) {
      this._revealed = '';
    }
    return revealed;
  }

  /** Show the plots of every GPU, or of those that were chosen. */
  toggleAll(): void {
    this._all = !this._all;
    this._changed.emit();
  }

  /** Say whether a GPU's plots are in view: only then they are asked for. */
  setInView(uuid: string, inView: boolean): void {
    if (inView === this._inView.has(uuid)) {
      return;
    }
    if (inView) {
      this._inView.add(uuid);
    } else {
      this._inView.delete(uuid);
    }
    this._changed.emit();
  }

  private _setSpan(span: ISpan | null, evidence: IEvidence | null): void {
    this._span = span;
    this._evidence = evidence;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _inView = new Set<string>();
  private _gpus: readonly IDevice[] = [];
  private _selected: readonly string[] = [];
  private _chosen = false;
  private _revealed = '';
  private _all = false;
  private _runName = '';
  private _span: ISpan | null = null;
  private _evidence: IEvidence | null = null;
  private _metric = 'SM_ACTIVE';
  private _windowS = 600;
  private _dark = false;
}
