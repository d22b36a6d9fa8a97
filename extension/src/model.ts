import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import type { GipfelRequests } from './request';
import { SaturationStream } from './stream';
import type { Connection, IFigure, IRunInfo, ISaturationStatus, StreamMessage, Traces } from './tokens';

/** What the panel shows: the run, the status of its samples, the figure and its new points. */
export class SaturationModel implements IDisposable {
  constructor(readonly requests: GipfelRequests) {
    const url = (): string => requests.streamUrl(this._windowS, this._dark);
    this._stream = new SaturationStream(url, address => new requests.settings.WebSocket(address));
    this._stream.received.connect((_, message) => {
      this._onMessage(message);
    });
    this._stream.connectionChanged.connect(() => {
      this._stateChanged.emit();
    });
  }

  /** Emitted when anything but the figure's points changed. */
  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  /** Emitted with the new points of the figure. */
  get samplesArrived(): ISignal<this, Traces> {
    return this._samplesArrived;
  }

  get run(): IRunInfo | null {
    return this._run;
  }

  get status(): ISaturationStatus | null {
    return this._status;
  }

  get figure(): IFigure | null {
    return this._figure;
  }

  get connection(): Connection {
    return this._stream.connection;
  }

  /** What went wrong with the last thing that the user asked for; empty when nothing did. */
  get problem(): string {
    return this._problem;
  }

  /** True while the simulated source is being started or stopped. */
  get busy(): boolean {
    return this._busy;
  }

  get isDisposed(): boolean {
    return this._stream.isDisposed;
  }

  /** Set the time span in seconds. */
  set windowS(value: number) {
    this._configure(value, this._dark);
  }

  /** Set whether the figure is drawn for a dark page. */
  set dark(value: boolean) {
    this._configure(this._windowS, value);
  }

  /** The simulated source's name, as the recorder knows it. */
  simulatedSource = 'training';

  /** Stream while somebody looks, rest while nobody does. */
  setVisible(visible: boolean): void {
    if (!visible) {
      this._stream.pause();
    } else if (this._stream.connection === 'paused') {
      this.reconnect();
    }
  }

  /** Ask for everything anew. */
  reconnect(): void {
    this._stream.connect();
    void this._refreshRun();
  }

  startSimulation(): Promise<void> {
    return this.attempt(() => this.requests.startSource(`synthetic:${this.simulatedSource}`));
  }

  stopSimulation(): Promise<void> {
    return this.attempt(() => this.requests.stopSource());
  }

  /** Do what the user asked for, and keep what went wrong for the panel to show. */
  async attempt(action: () => Promise<unknown>): Promise<void> {
    this._busy = true;
    this._problem = '';
    this._stateChanged.emit();
    try {
      await action();
    } catch (error) {
      this._problem = error instanceof Error ? error.message : String(error);
    } finally {
      this._busy = false;
      this._stateChanged.emit();
    }
  }

  dispose(): void {
    this._stream.dispose();
    Signal.clearData(this);
  }

  private _configure(windowS: number, dark: boolean): void {
    if (windowS === this._windowS && dark === this._dark) {
      return;
    }
    this._windowS = windowS;
    this._dark = dark;
    if (this._stream.connection !== 'paused') {
      this._stream.connect();
    }
  }

  /** Read again what this server runs in. */
  refreshRun(): Promise<void> {
    return this._refreshRun();
  }

  private async _refreshRun(): Promise<void> {
    try {
      this._run = await this.requests.run();
      this._stateChanged.emit();
    } catch {
      // The stream's own state says that the server does not answer.
      this._run = null;
    }
  }

  private _onMessage(message: StreamMessage): void {
    const before = this._status;
    this._status = message.status;
    if (message.type === 'samples') {
      this._samplesArrived.emit(message.traces);
    }
    if (message.type === 'figure') {
      this._figure = message.figure;
      void this._refreshRun();
    }
    if (message.type === 'figure' || !same(before, message.status)) {
      this._stateChanged.emit();
    }
  }

  private readonly _stateChanged = new Signal<this, void>(this);
  private readonly _samplesArrived = new Signal<this, Traces>(this);
  private readonly _stream: SaturationStream;
  private _run: IRunInfo | null = null;
  private _status: ISaturationStatus | null = null;
  private _figure: IFigure | null = null;
  private _windowS = 600;
  private _dark = false;
  private _busy = false;
  private _problem = '';
}

/** Whether two statuses look the same on the screen. */
function same(a: ISaturationStatus | null, b: ISaturationStatus): boolean {
  return a?.state === b.state && a.simulated === b.simulated && a.gpus === b.gpus && a.message === b.message;
}
