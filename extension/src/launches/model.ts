import { Signal, type ISignal } from '@lumino/signaling';

import type { ILaunch, ILogPage, LaunchRequests, LogLine, LogPosition } from './requests';

const POLL_MS = 3_000;
const REST_MS = 30_000;
const LOG_MS = 1_500;
const MOST_LINES = 2_000;

/** The user's launches, asked for while somebody looks, and the log that is open. */
export class LaunchesModel {
  constructor(readonly requests: LaunchRequests) {}

  /** Emitted when the list, the log or the error has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Those that run first, then the newest; null before the first answer. */
  get launches(): readonly ILaunch[] | null {
    return this._launches;
  }

  /** When the last answer came, in milliseconds since 1970. */
  get askedMs(): number {
    return this._askedMs;
  }

  /** Why there is no new answer, in one line; empty where there is one. */
  get error(): string {
    return this._error;
  }

  /** The launch whose log is open; empty for none. */
  get opened(): string {
    return this._opened;
  }

  /** The one rank whose lines are shown; null for all. */
  get rank(): number | null {
    return this._rank;
  }

  /** The end of the open log. */
  get lines(): readonly LogLine[] {
    return this._lines;
  }

  /** What torch's flight recorder says of the launch whose log is open. */
  get flight(): readonly string[] {
    return this._flight;
  }

  /** What a launch was asked to do and has not done yet. */
  isBusy(id: string): boolean {
    return this._busy.has(id);
  }

  /** Ask while the list is seen, and rest while it is not. */
  setVisible(visible: boolean): void {
    this._visible = visible;
    window.clearTimeout(this._timer);
    window.clearTimeout(this._logTimer);
    if (visible) {
      void this.refresh();
      void this._readLog();
    }
  }

  /** Ask now. */
  async refresh(): Promise<void> {
    window.clearTimeout(this._timer);
    try {
      this._launches = await this.requests.list();
      this._askedMs = Date.now();
      this._error = '';
    } catch (error) {
      this._error = lineOf(error);
    }
    this._changed.emit();
    if (this._visible) {
      const runs = this._launches?.some(each => each.phase !== 'ended') ?? false;
      window.clearTimeout(this._timer);
      this._timer = window.setTimeout(() => void this.refresh(), runs ? POLL_MS : REST_MS);
    }
  }

  /** Open a launch's log, of one rank or of all; the empty name closes it. */
  openLog(id: string, rank: number | null = null): void {
    window.clearTimeout(this._logTimer);
    this._opened = id;
    this._rank = rank;
    this._lines = [];
    this._flight = [];
    this._position = null;
    this._changed.emit();
    void this._readLog();
  }

  /** End the ranks of one. */
  stop(id: string): Promise<void> {
    return this._act(id, () => this.requests.stop(id));
  }

  /** Launch the same once more. */
  again(id: string): Promise<void> {
    return this._act(id, () => this.requests.again(id));
  }

  /** The path of the executed notebook; null where there is none to open, which `error` says. */
  async notebook(id: string): Promise<string | null> {
    let path: string | null = null;
    await this._act(id, async () => {
      path = await this.requests.notebook(id);
    });
    return path;
  }

  private async _act(id: string, act: () => Promise<void>): Promise<void> {
    this._busy.add(id);
    this._changed.emit();
    let said = '';
    try {
      await act();
    } catch (error) {
      said = lineOf(error);
    }
    this._busy.delete(id);
    await this.refresh();
    if (said !== '') {
      this._error = said;
      this._changed.emit();
    }
  }

  private async _readLog(): Promise<void> {
    const id = this._opened;
    const rank = this._rank;
    if (id === '') {
      return;
    }
    const before = this._position;
    let page: ILogPage;
    try {
      page = await this.requests.log(id, before, rank);
    } catch (error) {
      this._error = lineOf(error);
      this._changed.emit();
      this._logTimer = window.setTimeout(() => void this._readLog(), REST_MS);
      return;
    }
    if (id !== this._opened || rank !== this._rank || before !== this._position) {
      return;
    }
    this._position = page.position;
    if (before === null) {
      this._flight = page.flight;
    }
    if (page.lines.length > 0 || before === null) {
      this._lines = [...this._lines, ...page.lines].slice(-MOST_LINES);
      this._changed.emit();
    }
    window.clearTimeout(this._logTimer);
    if (this._visible && (page.more || !page.ended)) {
      this._logTimer = window.setTimeout(() => void this._readLog(), page.more ? 100 : LOG_MS);
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _busy = new Set<string>();
  private _launches: readonly ILaunch[] | null = null;
  private _error = '';
  private _askedMs = 0;
  private _opened = '';
  private _rank: number | null = null;
  private _lines: readonly LogLine[] = [];
  private _flight: readonly string[] = [];
  private _position: LogPosition | null = null;
  private _visible = false;
  private _timer = 0;
  private _logTimer = 0;
}

function lineOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
