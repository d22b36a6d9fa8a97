import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IDevice, IFigure, IRunEvent, IRunInfo, ISaturationStatus, IScore, StreamMessage } from '../api';
import type { Figures, News } from '../figures/news';
import { DrawQueue } from '../figures/pace';
import type { IGipfelPanel } from '../tokens';
import { GrowingRun } from './growing-run';
import type { SaturationRequests, IStretchQuery } from './requests';
import { Shown } from './shown';
import { SaturationStream, sameStatus, type Connection } from './stream';

/** Several choices at once are one question. */
const SETTLE_MS = 120;

/** Knows what this server runs in, and asks again. */
export type IRunSource = Pick<IGipfelPanel, 'run' | 'refreshRun'>;

/** What the saturation section shows: a live window of this run, or a stretch of any. */
export class SaturationModel implements IDisposable {
  /** @param _source Knows what this server runs in: the panel. */
  constructor(
    readonly requests: SaturationRequests,
    private readonly _source: IRunSource
  ) {
    const url = (): string => requests.streamUrl(this.shown.view());
    this._stream = new SaturationStream(url, address => new requests.settings.WebSocket(address));
    this._stream.received.connect((_, message) => {
      this._onMessage(message);
    });
    this._stream.connectionChanged.connect(() => {
      this._stateChanged.emit();
    });
    this.shown.changed.connect(() => {
      this._ask();
    });
  }

  /** What somebody chose to look at. */
  readonly shown = new Shown();

  /** Draws all plots of the page, one after the other. */
  readonly queue = new DrawQueue();

  /** Emitted when anything but the figures' points changed. */
  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  /** Emitted with the names of the figures that are new. */
  get figuresChanged(): ISignal<this, readonly string[]> {
    return this._figuresChanged;
  }

  /** Emitted with what came in for the figures. */
  get newsArrived(): ISignal<this, News> {
    return this._newsArrived;
  }

  /** What this server runs in. */
  get run(): IRunInfo | null {
    return this._source.run;
  }

  get status(): ISaturationStatus | null {
    return this._status;
  }

  /** The score of what is shown; null while nobody knows it. */
  get score(): IScore | null {
    return this._score;
  }

  get events(): readonly IRunEvent[] {
    return this._events;
  }

  get paused(): boolean {
    return this._paused;
  }

  get connection(): Connection {
    return this._stream.connection;
  }

  /** When the newest samples arrived, on this page's clock. */
  get heardMs(): number {
    return this._heardMs;
  }

  /** What went wrong with the last thing that the user asked for; empty when nothing did. */
  get problem(): string {
    return this._problem;
  }

  /** Whether the run that is shown, which is not this server's, is being recorded now. */
  get growing(): boolean {
    return this._again.growing && !this.shown.live;
  }

  /** True while the server is asked for what the user wants. */
  get busy(): boolean {
    return this._busy > 0;
  }

  get isDisposed(): boolean {
    return this._stream.isDisposed;
  }

  /** The simulated source's name, as the recorder knows it. */
  simulatedSource = 'training';

  /** A figure by its name. */
  figure(name: string): IFigure | null {
    return this._figures[name] ?? null;
  }

  /** What is shown, as the server's other routes are asked for it. */
  query(): IStretchQuery {
    const now = this._newestMs();
    const { runName, span, windowS } = this.shown;
    const since = runName === '' && now ? now - 1000 * windowS : null;
    return { run: runName, sinceMs: span?.sinceMs ?? since, untilMs: span?.untilMs ?? null };
  }

  /** Stream while somebody looks, rest while nobody does. */
  setVisible(visible: boolean): void {
    this._again.visible = visible;
    if (!visible) {
      this._stream.pause();
    } else if (this._stream.connection === 'paused' && !this._paused) {
      this.reconnect();
    }
  }

  /** Ask for everything anew. */
  reconnect(): void {
    this._paused = false;
    this._stream.connect();
    void this._source.refreshRun();
  }

  /** Pause, or resume with what is there then. */
  pause(paused: boolean): void {
    this._paused = paused;
    if (paused) {
      this._stream.pause();
      this._stateChanged.emit();
    } else {
      this.reconnect();
    }
  }

  startSimulation(): Promise<void> {
    return this.attempt(() => this.requests.startSource(`synthetic:${this.simulatedSource}`));
  }

  stopSimulation(): Promise<void> {
    return this.attempt(() => this.requests.stopSource());
  }

  /** Do what the user asked for, and keep what went wrong for the panel to show. */
  async attempt(action: () => Promise<unknown>): Promise<void> {
    this._busy += 1;
    this._problem = '';
    this._stateChanged.emit();
    try {
      await action();
    } catch (error) {
      this._problem = error instanceof Error ? error.message : String(error);
    } finally {
      this._busy -= 1;
      this._stateChanged.emit();
    }
  }

  dispose(): void {
    this._settled.dispose();
    this._again.dispose();
    this._stream.dispose();
    Signal.clearData(this);
  }

  /** Ask for what is to be shown now, once several choices have settled. */
  private _ask(): void {
    if (this._runShown !== this.shown.runName) {
      this._runShown = this.shown.runName;
      this._again.growing = false;
      this._score = null;
      this._events = [];
    }
    this._stateChanged.emit();
    this._again.stop();
    void this._settled.invoke();
  }

  private _askSettled(): void {
    if (this.shown.live) {
      const view = this.shown.view();
      this._stream.send({ ...view, gpus: [...view.gpus] });
    } else {
      void this.attempt(() => this._readStretch());
    }
  }

  private async _readStretch(): Promise<void> {
    const asked = ++this._asked;
    const query = this.query();
    const scored = this.requests.score(query);
    // It is waited for below; until then its failure is nobody's.
    scored.catch(() => undefined);
    const current = (): boolean => asked === this._asked && !this.shown.live;
    const found = await this.requests.stretch(query, this.shown.view());
    // Whoever chose something else meanwhile gets that.
    if (current()) {
      this._events = found.events;
      this._again.growing = found.growing;
      this._takeFigures(found.figures, found.devices, true);
      const score = await scored;
      if (current()) {
        this._score = score;
        this._stateChanged.emit();
      }
    }
    this._again.later();
  }

  private _onMessage(message: StreamMessage): void {
    if (message.type === 'score') {
      if (this.shown.live) {
        this._score = message.document;
        this._events = message.events;
        this._stateChanged.emit();
      }
      return;
    }
    const before = this._status;
    this._status = message.status;
    if (message.type === 'samples') {
      this._heardMs = Date.now();
      if (this.shown.live) {
        this._newsArrived.emit(message);
      }
    }
    if (message.type === 'figures' && this.shown.live) {
      this._takeFigures(message.figures, message.gpus, message.whole);
      if (message.whole) {
        void this._source.refreshRun();
      }
    } else if (!sameStatus(before, message.status)) {
      this._stateChanged.emit();
    }
  }

  private _takeFigures(figures: Figures, devices: readonly IDevice[], whole: boolean): void {
    this._figures = whole ? figures : { ...this._figures, ...figures };
    this.shown.setDevices(devices);
    this._stateChanged.emit();
    this._figuresChanged.emit(Object.keys(figures));
  }

  private _newestMs(): number {
    return (this._status?.last_ns ?? 0) / 1e6;
  }

  private readonly _stateChanged = new Signal<this, void>(this);
  private readonly _figuresChanged = new Signal<this, readonly string[]>(this);
  private readonly _newsArrived = new Signal<this, News>(this);
  private readonly _stream: SaturationStream;
  private _status: ISaturationStatus | null = null;
  private _score: IScore | null = null;
  private _events: readonly IRunEvent[] = [];
  private _figures: Figures = {};
  private _runShown = '';
  private _paused = false;
  private _heardMs = 0;
  private _busy = 0;
  private _problem = '';
  private readonly _settled = new Debouncer(() => {
    this._askSettled();
  }, SETTLE_MS);
  private readonly _again = new GrowingRun(() => this._readStretch());
  private _asked = 0;
}
