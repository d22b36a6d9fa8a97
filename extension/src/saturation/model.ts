import type { IDisposable } from '@lumino/disposable';
import { Debouncer } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IDevice, IFigure, IRunEvent, IRunInfo, ISaturationStatus, IScore, StreamMessage } from '../api';
import { ReconnectingSocket, type Connection } from '../common/reconnecting-socket';
import type { IGipfelPanel } from '../tokens';
import type { IFigureSource } from '../views/figures/figure';
import type { Figures, SampleUpdate } from '../views/figures/traces';
import { SaturationFigures } from './figures';
import { GrowingRun } from './growing-run';
import { sameStatus, type SaturationRequests, type IRangeQuery } from './requests';
import { ViewSelection } from './view-selection';

/** Delay in milliseconds: changes within it are sent as one request. */
const SETTLE_MS = 120;

/** Provides the run of this server. */
export type IRunSource = Pick<IGipfelPanel, 'run' | 'refreshRun'>;

/** The model of the saturation section: a live window of this run, or a time range of any run. */
export class SaturationModel implements IDisposable {
  /** @param _source Provides the run of this server: the panel. */
  constructor(
    readonly requests: SaturationRequests,
    private readonly _source: IRunSource
  ) {
    const url = (): string => requests.streamUrl(this.selection.view());
    this._stream = new ReconnectingSocket<StreamMessage>(
      url,
      address => new requests.settings.WebSocket(address)
    );
    this._stream.received.connect((_, message) => {
      this._onMessage(message);
    });
    this._stream.connectionChanged.connect(() => {
      this._stateChanged.emit();
    });
    this.selection.changed.connect(() => {
      this._update();
    });
  }

  /** The run, time, GPUs and metric that the user has selected. */
  readonly selection = new ViewSelection();

  /** The plots of the section. */
  readonly figures: IFigureSource = new SaturationFigures(this);

  /** Emitted when anything except the figures' points has changed. */
  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  /** Emitted with the names of new figures. */
  get figuresChanged(): ISignal<this, readonly string[]> {
    return this._figuresChanged;
  }

  /** Emitted with new samples for the figures. */
  get samplesReceived(): ISignal<this, SampleUpdate> {
    return this._samplesReceived;
  }

  /** The run of this server. */
  get run(): IRunInfo | null {
    return this._source.run;
  }

  get status(): ISaturationStatus | null {
    return this._status;
  }

  /** The score of the selection; null until it is known. */
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

  /** The time at which the newest samples arrived, by the browser's clock. */
  get receivedMs(): number {
    return this._receivedMs;
  }

  /** The error of the user's last action; empty if it succeeded. */
  get problem(): string {
    return this._problem;
  }

  /** True if the selected run is still recorded, by another server or job. */
  get growing(): boolean {
    return this._growing.growing && !this.selection.live;
  }

  /** True while an action of the user is in progress. */
  get busy(): boolean {
    return this._busy > 0;
  }

  get isDisposed(): boolean {
    return this._stream.isDisposed;
  }

  /** The name of the simulated source in the recorder. */
  simulatedSource = 'training';

  /** Return a figure by its name; null if there is none. */
  figure(name: string): IFigure | null {
    return this._figures[name] ?? null;
  }

  /** Return the selection as a query for the server's other routes. */
  query(): IRangeQuery {
    const now = (this._status?.last_ns ?? 0) / 1e6;
    const { runName, timeSpan, lastS, live } = this.selection;
    return {
      run: runName,
      sinceMs: timeSpan?.sinceMs ?? (live && now && lastS !== null ? now - 1000 * lastS : null),
      untilMs: timeSpan?.untilMs ?? null,
      lastS: live || timeSpan ? null : lastS
    };
  }

  /** Stream while the section or another view is visible; disconnect when none is. */
  setVisible(shown: boolean, view: object = this): void {
    if (shown) {
      this._views.add(view);
    } else {
      this._views.delete(view);
    }
    const visible = this._views.size > 0;
    this._growing.visible = visible;
    if (!visible) {
      this._stream.pause();
    } else if (this._stream.connection === 'paused' && !this._paused) {
      this.reconnect();
    }
  }

  /** Connect again and request everything. */
  reconnect(): void {
    this._paused = false;
    this._stream.connect();
    void this._source.refreshRun();
  }

  /** Pause the stream, or resume with current data. */
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

  /** Run an action of the user, and keep its error for the panel. */
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
    this._growing.dispose();
    this._stream.dispose();
    Signal.clearData(this);
  }

  /** Request the selection after a short delay, in case it changes again. */
  private _update(): void {
    if (this._runShown !== this.selection.runName) {
      this._runShown = this.selection.runName;
      this._growing.growing = false;
      this._score = null;
      this._events = [];
    }
    this._stateChanged.emit();
    this._growing.stop();
    void this._settled.invoke();
  }

  private _updateSettled(): void {
    if (this.selection.live) {
      const view = this.selection.view();
      this._stream.send({ ...view, gpus: [...view.gpus], gauges: [...view.gauges] });
    } else {
      void this.attempt(() => this._readRange());
    }
  }

  private async _readRange(): Promise<void> {
    const requestNumber = ++this._requestNumber;
    const query = this.query();
    const scored = this.requests.score(query);
    // It is awaited below; without this, an earlier failure would be unhandled.
    scored.catch(() => undefined);
    const current = (): boolean => requestNumber === this._requestNumber && !this.selection.live;
    const found = await this.requests.stretch(query, this.selection.view());
    // The selection has changed meanwhile.
    if (current()) {
      this._events = found.events;
      this._growing.growing = found.growing;
      this._setFigures(found.figures, found.devices, true);
      const score = await scored;
      if (current()) {
        this._score = score;
        this._stateChanged.emit();
      }
    }
    this._growing.schedule();
  }

  private _onMessage(message: StreamMessage): void {
    if (message.type === 'score') {
      if (this.selection.live) {
        this._score = message.document;
        this._events = message.events;
        this._stateChanged.emit();
      }
      return;
    }
    const before = this._status;
    this._status = message.status;
    if (message.type === 'samples') {
      this._receivedMs = Date.now();
      if (this.selection.live) {
        this._samplesReceived.emit(message);
      }
    }
    if (message.type === 'figures' && this.selection.live) {
      const known = this.selection.gpus.map(gpu => gpu.uuid).sort();
      this._setFigures(message.figures, message.gpus, message.complete);
      const found = this.selection.gpus.map(gpu => gpu.uuid).sort();
      if (message.complete && (found.join() !== known.join() || before === null)) {
        // Its devices are those of the run.
        void this._source.refreshRun();
      }
    } else if (!sameStatus(before, message.status)) {
      this._stateChanged.emit();
    }
  }

  private _setFigures(figures: Figures, devices: readonly IDevice[], whole: boolean): void {
    this._figures = whole ? figures : { ...this._figures, ...figures };
    this.selection.setDevices(devices);
    this._stateChanged.emit();
    this._figuresChanged.emit(Object.keys(figures));
  }

  private readonly _stateChanged = new Signal<this, void>(this);
  private readonly _figuresChanged = new Signal<this, readonly string[]>(this);
  private readonly _samplesReceived = new Signal<this, SampleUpdate>(this);
  private readonly _stream: ReconnectingSocket<StreamMessage>;
  private _status: ISaturationStatus | null = null;
  private _score: IScore | null = null;
  private _events: readonly IRunEvent[] = [];
  private _figures: Figures = {};
  private readonly _views = new Set<object>();
  private _runShown = '';
  private _paused = false;
  private _receivedMs = 0;
  private _busy = 0;
  private _problem = '';
  private readonly _settled = new Debouncer(() => {
    this._updateSettled();
  }, SETTLE_MS);
  private readonly _growing = new GrowingRun(() => this._readRange());
  private _requestNumber = 0;
}
