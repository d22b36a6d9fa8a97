import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { errorMessage } from '../common/error-message';
import { ViewPoll } from '../common/view-poll';
import type { IJobSelection, IJobState } from '../tokens';

/** Ranks and recorders come in the first minutes of a run; what is there does not change. */
const GROWING_MS = 15_000;

/** What a document is requested for. */
export interface IDocumentQuery {
  readonly run: string;
  readonly launch: string;
  readonly layout: string;
  readonly dark: boolean;
}

/** A document on the job page's run that one tab shows, requested while the tab is visible. */
export class JobDocumentModel<T> implements IDisposable {
  constructor(
    /** Requests the document. */
    private readonly _request: (query: IDocumentQuery) => Promise<T>,
    private readonly _selection: IJobSelection,
    private readonly _state: IJobState,
    private readonly _options: { readonly name: string; readonly themed: boolean }
  ) {
    _selection.changed.connect(this._onSelection);
    this._poll = new ViewPoll(_options.name, () => this._ask());
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Null before the first response for the run. */
  get value(): T | null {
    return this._value;
  }

  /** The last error, in one line; empty if the last request succeeded. */
  get error(): string {
    return this._error;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  setVisible(visible: boolean): void {
    if (visible !== this._poll.visible) {
      this._poll.setVisible(visible);
    }
  }

  refresh(): Promise<void> {
    return this._poll.refresh();
  }

  dispose(): void {
    this._selection.changed.disconnect(this._onSelection);
    this._poll.dispose();
    Signal.clearData(this);
  }

  private readonly _onSelection = (): void => {
    const shown = this._key();
    if (shown !== this._shown) {
      [this._shown, this._value, this._text] = [shown, null, ''];
      this._changed.emit();
      if (this._poll.visible) {
        void this._poll.refresh();
      }
    }
  };

  private async _ask(): Promise<number | null> {
    const { run, launch, layout, dark } = this._selection;
    const asked = this._key();
    this._shown = asked;
    try {
      const found = await this._request({ run, launch, layout, dark });
      const text = JSON.stringify(found);
      // An equal answer must not redraw a thousand boxes.
      if (asked === this._key() && text !== this._text) {
        [this._value, this._text] = [found, text];
      }
      this._error = '';
    } catch (reason) {
      this._error = errorMessage(reason);
      throw reason;
    } finally {
      this._changed.emit();
    }
    // The panel shows a document of this server's own run also before the job page has loaded the run.
    return (this._state.job?.growing ?? run === '') ? GROWING_MS : null;
  }

  private _key(): string {
    const { run, launch, layout, dark } = this._selection;
    return JSON.stringify([run, launch, layout, this._options.themed && dark]);
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _poll: ViewPoll;
  private _value: T | null = null;
  private _text = '';
  private _shown = '';
  private _error = '';
}
