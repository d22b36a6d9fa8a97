import type { ILaunch, ILogPage, ILogPosition } from '../api';
import type { IPushed } from '../common/server-changes';
import { ViewPoll } from '../common/view-poll';
import { NO_LINES, appendLines, type ILogLines } from '../views/launch/log-lines';
import { WorkModel } from '../workloads/model';
import type { LaunchRequests } from './requests';

const LOG_MS = 1_500;
/** Delay of the next request if the server has more lines than one response holds. */
const MORE_MS = 100;

/** The user's launches, running ones first, then the newest; and the open log. */
export class LaunchesModel extends WorkModel<ILaunch> {
  /** @param _only The ID of the only launch to show; empty for all. */
  constructor(
    readonly requests: LaunchRequests,
    private readonly _only = '',
    changes: IPushed | null = null
  ) {
    super(changes);
  }

  /** The ID of the launch whose log is open; empty for none. */
  get openLogId(): string {
    return this._openLogId;
  }

  /** The rank whose lines are shown; null for all. */
  get rank(): number | null {
    return this._rank;
  }

  /** The end of the open log. */
  get log(): ILogLines {
    return this._log;
  }

  /** The findings of torch's flight recorder for the launch whose log is open. */
  get flight(): readonly string[] {
    return this._flight;
  }

  /** Poll the list and the log while they are visible. */
  override setVisible(visible: boolean): void {
    super.setVisible(visible);
    this._logPoll.setVisible(visible);
  }

  override isRunning(launch: ILaunch): boolean {
    return launch.phase !== 'ended';
  }

  /** Open the log of a launch, of one rank or of all; an empty ID closes it. */
  openLog(id: string, rank: number | null = null): void {
    this._openLogId = id;
    this._rank = rank;
    this._log = NO_LINES;
    this._flight = [];
    this._position = null;
    this.emit();
    void this._logPoll.refresh();
  }

  /** Stop the ranks of a launch. */
  stop(id: string): Promise<void> {
    return this.act(id, () => this.requests.stop(id));
  }

  /** Start the same launch again. */
  rerun(id: string): Promise<void> {
    return this.act(id, () => this.requests.rerun(id));
  }

  /** Return the path of the executed notebook; null if there is none, with the reason in `error`. */
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

  /** Fetch new lines of the open log; return the delay of the next request, null at the end of the log. */
  private async _readLog(): Promise<number | null> {
    const id = this._openLogId;
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
    if (id !== this._openLogId || rank !== this._rank || before !== this._position) {
      return null;
    }
    this._position = page.position;
    if (before === null) {
      this._flight = page.flight_recorder;
    }
    if (page.lines.length > 0 || before === null) {
      this._log = appendLines(this._log, page.lines);
      this.emit();
    }
    if (page.more) {
      return MORE_MS;
    }
    return page.ended ? null : LOG_MS;
  }

  private readonly _logPoll = new ViewPoll('launch-log', () => this._readLog());
  private _openLogId = '';
  private _rank: number | null = null;
  private _log = NO_LINES;
  private _flight: readonly string[] = [];
  private _position: ILogPosition | null = null;
}
