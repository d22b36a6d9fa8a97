import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IFigure, IJobDocument, IJobFigures, IJobVerdicts } from '../api';
import { errorMessage } from '../common/error-message';
import { ViewPoll } from '../common/view-poll';
import type { IJobState } from '../tokens';
import { decodedHeat } from './heat';
import type { IFiguresQuery, IJobQuery, IUnchanged, JobRequests } from './requests';
import type { JobSelection } from './selection';

/** A recorder writes every few seconds; a heat map of a thousand GPUs takes up to 200 ms to draw. */
const GROWING_MS = 5_000;
const SETTLE_MS = 120;
/** A figure needs another legend at each of these widths. */
const WIDTH_STEP = 100;
const LEAST_WIDTH = 200;
/** From this age on, what a growing run shows is stale. */
const STALE_MS = 30_000;

/** What a tab draws. */
export interface IWanted {
  readonly figures: readonly string[];
  /** Users' metrics. */
  readonly names: readonly string[];
  /** Metrics of devices. */
  readonly bands: readonly string[];
}

const NO_FIGURES: IWanted = { figures: [], names: [], bands: [] };

/** The model of the job page: the selected job, its verdicts, and the figures of the tab that is shown. */
export class JobModel implements IJobState, IDisposable {
  constructor(
    readonly requests: JobRequests,
    readonly selection: JobSelection,
    private readonly _now: () => number = Date.now
  ) {
    selection.changed.connect(this._onSelection);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted with the names of new figures. */
  get figuresChanged(): ISignal<this, readonly string[]> {
    return this._figuresChanged;
  }

  get job(): IJobDocument | null {
    return this._job;
  }

  get verdicts(): IJobVerdicts | null {
    return this._verdicts;
  }

  get error(): string {
    return this._error;
  }

  get receivedMs(): number {
    return this._receivedMs;
  }

  /** True while a request of the user's is under way. */
  get busy(): boolean {
    return this._busy;
  }

  /** True if a growing run was not answered for long. */
  get stale(): boolean {
    return this._job?.growing === true && this._now() - this._receivedMs > STALE_MS;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** The metric of the heat map, and the order of its rows. */
  get metric(): string {
    return this.selection.view.metric;
  }

  get order(): string {
    return this.selection.view.order;
  }

  setHeat(metric: string, order: string): void {
    this.selection.setView({ metric, order });
  }

  /** Set the width of figures in pixels, which decides the lines of their legends. */
  setWidth(pixels: number): void {
    const width = Math.max(LEAST_WIDTH, Math.floor(pixels / WIDTH_STEP) * WIDTH_STEP);
    if (width !== this._width) {
      this._width = width;
      this._update();
    }
  }

  /** Set what the visible tab draws. */
  setWanted(wanted: IWanted | null): void {
    const next = wanted ?? NO_FIGURES;
    if (JSON.stringify(next) !== JSON.stringify(this._wanted)) {
      this._wanted = next;
      this._update();
    }
  }

  /** Return a figure by name; null before it is there. */
  figure(name: string): IFigure | null {
    return this._figures[name] ?? null;
  }

  /** Poll while the page is visible. */
  setVisible(visible: boolean): void {
    if (visible !== this._poll.visible) {
      this._poll.setVisible(visible);
    }
  }

  /** Request everything again. */
  refresh(): Promise<void> {
    return this._poll.refresh();
  }

  dispose(): void {
    this.selection.changed.disconnect(this._onSelection);
    this._settled.dispose();
    this._poll.dispose();
    Signal.clearData(this);
  }

  private readonly _onSelection = (): void => {
    const { run, launch } = this.selection;
    const shown = `${run}\n${launch}`;
    if (shown !== this._shown) {
      this._shown = shown;
      [this._job, this._verdicts, this._figures] = [null, null, {}];
      this._haveFigures = '';
    }
    this._changed.emit();
    // Not if only what the server resolved has changed.
    const asked = JSON.stringify(this._figuresQuery());
    if (asked !== this._asked) {
      this._asked = asked;
      this._update();
    }
  };

  /** Request what is shown after a short delay, in case it changes again. */
  private _update(): void {
    if (this._poll.visible) {
      void this._settled.invoke();
    }
  }

  /** Request all that is shown; return when to do so again, null if nothing grows. */
  private async _ask(): Promise<number | null> {
    const request = ++this._requestNumber;
    this._busy = true;
    this._changed.emit();
    let error = '';
    try {
      await Promise.all([this._askJob(request), this._askFigures(request)]);
    } catch (reason) {
      error = errorMessage(reason);
      throw reason;
    } finally {
      if (request === this._requestNumber) {
        this._busy = false;
        this._error = error;
        this._changed.emit();
      }
    }
    return this._job?.growing === true ? GROWING_MS : null;
  }

  private async _askJob(request: number): Promise<void> {
    const query = this._query();
    const found = await this.requests.document(query, this._job?.version ?? '');
    if (request === this._requestNumber) {
      this._receivedMs = this._now();
      this._job = isUnchanged(found) ? this._job : found;
      this._changed.emit();
      void this._askVerdicts(query);
    }
  }

  /** Request the verdicts, which may take seconds: nothing waits for them. */
  private async _askVerdicts(query: IJobQuery): Promise<void> {
    if (this._judging) {
      return;
    }
    this._judging = true;
    const shown = this._shown;
    try {
      const found = await this.requests.verdicts(query, this._verdicts?.version ?? '');
      if (shown === this._shown && !isUnchanged(found)) {
        this._verdicts = found;
        this._changed.emit();
      }
    } catch (reason) {
      if (shown === this._shown && this._verdicts === null) {
        this._verdicts = { version: '', verdicts: [], notes: [errorMessage(reason)] };
        this._changed.emit();
      }
    } finally {
      this._judging = false;
    }
  }

  private async _askFigures(request: number): Promise<void> {
    const query = this._figuresQuery();
    if (query.figures.length === 0 && !this.selection.some) {
      return;
    }
    const found: IJobFigures | IUnchanged = await this.requests.figures(query, this._haveFigures);
    if (request !== this._requestNumber || isUnchanged(found)) {
      return;
    }
    this._haveFigures = found.version;
    const drawn = Object.entries(found.figures).map(([name, figure]) => [name, decodedHeat(figure)] as const);
    this._figures = { ...this._figures, ...Object.fromEntries(drawn) };
    this.selection.setResolved(found.selected);
    this._changed.emit();
    this._figuresChanged.emit(Object.keys(found.figures));
  }

  private _query(): IJobQuery {
    const { run, launch, layout } = this.selection;
    return { run, launch, layout };
  }

  private _figuresQuery(): IFiguresQuery {
    const { span, lastS, expression, pickExpression, dark } = this.selection;
    return {
      ...this._query(),
      ...this._wanted,
      sinceMs: span?.sinceMs ?? null,
      untilMs: span?.untilMs ?? null,
      lastS: span ? null : lastS,
      select: expression,
      pick: pickExpression,
      order: this.order,
      metric: this.metric,
      width: this._width,
      dark
    };
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _figuresChanged = new Signal<this, readonly string[]>(this);
  private readonly _poll = new ViewPoll('job-page', () => this._ask());
  private readonly _settled = new Debouncer(() => this._poll.refresh(), SETTLE_MS);
  private _job: IJobDocument | null = null;
  private _verdicts: IJobVerdicts | null = null;
  private _figures: Readonly<Record<string, IFigure>> = {};
  private _haveFigures = '';
  private _wanted = NO_FIGURES;
  private _width = LEAST_WIDTH;
  private _shown = '\n';
  private _asked = '';
  private _error = '';
  private _receivedMs = 0;
  private _busy = false;
  private _judging = false;
  private _requestNumber = 0;
}

function isUnchanged(answer: object): answer is IUnchanged {
  return 'unchanged' in answer;
}
