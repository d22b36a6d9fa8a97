import type { ILaunch, ILogPage, ILogPosition } from '../api';
import { ViewPoll } from '../common/view-poll';
import { WorkModel } from '../work/model';
import type { LaunchRequests, LogLine } from './requests';

const LOG_MS = 1_500;
/** Where the server has more lines than it sends at once. */
const MORE_MS = 100;
const MOST_LINES = 2_000;

/** The user's launches, those that run first, then the newest; and the log that is open. */
export class LaunchesModel extends WorkModel<ILaunch> {
  /** @param _only The id of the launch that is shown alone; empty for all. */
  constructor(
    readonly requests: LaunchRequests,
    private readonly _only = ''
  ) {
    super();
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

  /** Ask for the list and the log while they are seen, and rest while they are not. */
  override setVisible(visible: boolean): void {
    super.setVisible(visible);
    this._log.setVisible(visible);
  }

  override runs(launch: ILaunch): boolean {
    return launch.phase !== 'ended';
  }

  /** Open a launch's log, of one rank or of all; the empty name closes it. */
  openLog(id: string, rank: number | null = null): void {
    this._opened = id;
    this._rank = rank;
    this._lines = [];
    this._flight = [];
    this._position = null;
    this.emit();
    void this._log.refresh();
  }

  /** End the ranks of one. */
  stop(id: string): Promise<void> {
    return this.act(id, () => this.requests.stop(id));
  }

  /** Launch the same once more. */
  again(id: string): Promise<void> {
    return this.act(id, () => this.requests.again(id));
  }

  /** The path of the executed notebook; null where there is none to open, which `error` says. */
  async notebook(id: string): Promise<string | null> {
    let path: string | null = null;
    await this.act(id, async () => {
      path = await this.requests.notebook(id);
    });
    return path;
  }

  protected override list(): Promise<readonly ILaunch[]> {
    return this.requests.list(this._only);
  }

  /** Read what is new in the open log; returns when to read on, null where nothing will come. */
  private async _readLog(): Promise<number | null> {
    const id = this._opened;
    const rank = this._rank;
    if (id === '') {
      return null;
    }
    const before = this._position;
    let page: ILogPage;
    try {
      page = await this.requests.log(id, before, rank);
    } catch (error) {
      this.fail(error);
      throw error;
    }
    if (id !== this._opened || rank !== this._rank || before !== this._position) {
      return null;
    }
    this._position = page.position;
    if (before === null) {
      this._flight = page.flight;
    }
    if (page.lines.length > 0 || before === null) {
      this._lines = [...this._lines, ...page.lines].slice(-MOST_LINES);
      this.emit();
    }
    if (page.more) {
      return MORE_MS;
    }
    return page.ended ? null : LOG_MS;
  }

  private readonly _log = new ViewPoll('launch-log', () => this._readLog());
  private _opened = '';
  private _rank: number | null = null;
  private _lines: readonly LogLine[] = [];
  private _flight: readonly string[] = [];
  private _position: ILogPosition | null = null;
}
