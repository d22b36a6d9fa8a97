import type { ILaunch } from '../api';
import type { ILaunchDetails, ILaunchDocument } from '../views/launch/document';
import { detailsOf, launchOf } from '../views/launch/document';
import { NO_LINES, appendLines, type ILogLines, type LogLine } from '../views/launch/log-lines';
import { notify, type IWidgetModel, type IWidgetViewModel } from './host';

/**
 * Lines of the log. If `first`, they answer a request: the end of the log so far, of `rank` (null: of all).
 * Otherwise they are new lines of all ranks.
 */
interface ILogsMessage {
  readonly type: 'logs';
  readonly first: boolean;
  readonly rank: number | null;
  readonly lines: readonly LogLine[];
}

/** The reason why an action failed. */
interface IErrorMessage {
  readonly type: 'error';
  readonly text: string;
}

type KernelMessage = ILogsMessage | IErrorMessage;

/** The launch in a cell: its state, which the kernel sends as the trait `document`, and the end of the log. */
export class LaunchCellModel implements IWidgetViewModel {
  /** @param _changed Called after each change. */
  constructor(
    private readonly _kernel: IWidgetModel,
    private readonly _changed: () => void
  ) {
    _kernel.on('change:document', this._onDocument);
    _kernel.on('msg:custom', this._onMessage);
    this._requestEarlierLines();
  }

  get launch(): ILaunch {
    return launchOf(this._document);
  }

  get details(): ILaunchDetails {
    return detailsOf(this._document);
  }

  /** The findings from torch's flight recorder, one string per line. */
  get flight(): readonly string[] {
    return this._document.flight_recorder ?? [];
  }

  /** The end of the log. */
  get log(): ILogLines {
    return this._log;
  }

  /** The rank whose lines are shown; null for all. */
  get rank(): number | null {
    return this._rank;
  }

  /** The reason why the last action failed, in one line; empty if it did not. */
  get error(): string {
    return this._error;
  }

  /** True while the launch is being stopped. */
  get stopping(): boolean {
    return this._stopping;
  }

  /** Show the lines of one rank, or of all for null. */
  chooseRank(rank: number | null): void {
    this._rank = rank;
    notify(this._kernel, { type: 'logs', rank });
    this._changed();
  }

  /** Stop the ranks of the launch. */
  stop(): void {
    this._stopping = true;
    this._error = '';
    notify(this._kernel, { type: 'stop' });
    this._changed();
  }

  dispose(): void {
    this._kernel.off('change:document', this._onDocument);
    this._kernel.off('msg:custom', this._onMessage);
  }

  private get _document(): ILaunchDocument {
    return this._kernel.get('document') ?? {};
  }

  private readonly _onDocument = (): void => {
    this._requestEarlierLines();
    this._changed();
  };

  private readonly _onMessage = (message: KernelMessage): void => {
    if (message.type === 'error') {
      this._error = message.text;
      this._stopping = false;
    } else if (!message.first) {
      const shown = message.lines.filter(line => this._rank === null || line[0] === this._rank);
      this._log = appendLines(this._log, shown);
    } else if (message.rank === this._rank) {
      this._log = appendLines(NO_LINES, message.lines);
    }
    this._changed();
  };

  /** A view that is rendered later, as after a reload, has missed what was logged before. */
  private _requestEarlierLines(): void {
    const { id } = this.launch;
    if (id !== '' && id !== this._id) {
      this._id = id;
      this._log = NO_LINES;
      this._stopping = false;
      this._error = '';
      notify(this._kernel, { type: 'logs', rank: this._rank });
    }
  }

  private _id = '';
  private _rank: number | null = null;
  private _log = NO_LINES;
  private _error = '';
  private _stopping = false;
}
