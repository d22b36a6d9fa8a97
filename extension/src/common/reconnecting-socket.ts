import type { JSONObject } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

/** State of the connection to the notebook server. */
export type Connection = 'connecting' | 'open' | 'retrying' | 'paused';

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 30_000;

/** A websocket with JSON messages that reconnects with growing delays, and that can be paused. */
export class ReconnectingSocket<T> implements IDisposable {
  constructor(
    private readonly url: () => string,
    private readonly open: (url: string) => WebSocket
  ) {}

  get connection(): Connection {
    return this._connection;
  }

  get connectionChanged(): ISignal<this, Connection> {
    return this._connectionChanged;
  }

  get received(): ISignal<this, T> {
    return this._received;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Connect now, even during a delay or if there is a connection. */
  connect(): void {
    if (this._disposed) {
      return;
    }
    this._close();
    this._set(this._lost ? 'retrying' : 'connecting');
    const socket = this.open(this.url());
    this._socket = socket;
    socket.onmessage = (event: MessageEvent<string>): void => {
      this._lost = 0;
      this._set('open');
      this._received.emit(JSON.parse(event.data) as T);
    };
    socket.onclose = (): void => {
      this._retry();
    };
  }

  /** Send a message; it is dropped while there is no connection. */
  send(message: JSONObject): void {
    if (this._socket?.readyState === WebSocket.OPEN) {
      this._socket.send(JSON.stringify(message));
    }
  }

  /** Close the connection until `connect` is called. */
  pause(): void {
    this._close();
    this._lost = 0;
    this._set('paused');
  }

  dispose(): void {
    if (!this._disposed) {
      this.pause();
      this._disposed = true;
      Signal.clearData(this);
    }
  }

  private _retry(): void {
    this._close();
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this._lost);
    this._lost += 1;
    this._set('retrying');
    // Random delays, so that the pages of a restarted server do not all reconnect at the same time.
    this._timer = window.setTimeout(
      () => {
        this.connect();
      },
      wait * (0.75 + Math.random() / 2)
    );
  }

  private _close(): void {
    window.clearTimeout(this._timer);
    if (this._socket) {
      this._socket.onclose = null;
      this._socket.onmessage = null;
      this._socket.close();
      this._socket = null;
    }
  }

  private _set(connection: Connection): void {
    if (connection !== this._connection) {
      this._connection = connection;
      this._connectionChanged.emit(connection);
    }
  }

  private readonly _connectionChanged = new Signal<this, Connection>(this);
  private readonly _received = new Signal<this, T>(this);
  private _connection: Connection = 'paused';
  private _socket: WebSocket | null = null;
  private _timer = 0;
  private _lost = 0;
  private _disposed = false;
}
