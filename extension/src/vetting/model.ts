import { Debouncer } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IVettingGrid, IProtocolContent, IProtocolListing, IVetting } from '../api';
import { errorMessage } from '../common/error-message';
import type { IPushed } from '../common/server-changes';
import { ViewPoll } from '../common/view-poll';
import type { ProtocolRef, VettingRequests } from './requests';

const RUNNING_MS = 1_000;
/** Poll interval while no vetting is running; one may be started elsewhere, such as in a terminal. */
const IDLE_MS = 30_000;
const FEW_ROWS = 40;
const ALL_ROWS = 5_000;
const CHECK_MS = 400;

/** A protocol that is being edited. */
export interface IDraft {
  readonly name: string;
  readonly text: string;
  /** What the server read from the text; null until it has checked it. */
  readonly meaning: IProtocolContent | null;
  readonly changed: boolean;
}

/**
 * The state of vetting, requested after each change that the server pushes; if it can't push, it is polled while the
 * section is visible.
 */
export class VettingModel {
  /**
   * @param directory Returns the directory of the current notebook, as a path of the server.
   */
  constructor(
    readonly requests: VettingRequests,
    private readonly _directory: () => string,
    changes: IPushed | null = null
  ) {
    this._poll = new ViewPoll('vetting', () => this._look(), changes);
  }

  /** Emitted when any property has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The state of the newest vetting; null before the first response. */
  vetting: IVetting | null = null;
  /** Findings by node and check; null if there are none. */
  grid: IVettingGrid | null = null;
  protocols: readonly IProtocolListing[] | null = null;
  /** True if the site collects reports of vettings in a registry. */
  registry = false;
  /** True if this user's reports are sent to the registry. */
  shares = false;
  /** The selected protocol, as `kind:file`. */
  chosen = 'shipped:quick';
  /** Leave out the check of nodes that passed within this time, such as `24h`; empty: check all. */
  skipVetted = '';
  draft: IDraft | null = null;
  /** The error of the last request. */
  error = '';
  /** True if the server does not respond at all. */
  disconnected = false;
  busy = false;

  get all(): boolean {
    return this._rows > FEW_ROWS;
  }

  get isRunning(): boolean {
    return this.vetting?.state === 'running' || this.vetting?.state === 'starting';
  }

  /** The selected protocol, if it is in the list. */
  get protocol(): IProtocolListing | undefined {
    return this.protocols?.find(each => protocolKey(each) === this.chosen);
  }

  /** Poll while the section is visible. */
  setVisible(visible: boolean): void {
    this._poll.setVisible(visible);
    if (visible) {
      void this.listProtocols();
    }
  }

  /** Poll now. */
  refresh(): Promise<void> {
    return this._poll.refresh();
  }

  /** Fetch the list of protocols again. */
  async listProtocols(): Promise<void> {
    this._listing += 1;
    const listing = this._listing;
    try {
      const { protocols, registry } = await this.requests.protocols(this._directory());
      if (listing !== this._listing) {
        // An older list may lack a protocol that was saved since.
        return;
      }
      this.protocols = protocols;
      this.registry = registry;
      if (!this.protocol) {
        const quick = protocols.find(each => each.kind === 'shipped' && each.name === 'quick');
        this.chosen = quick ? protocolKey(quick) : '';
      }
      if (registry) {
        this.shares = await this.requests.shares();
      }
    } catch (error) {
      this.error = errorMessage(error);
    }
    this._changed.emit();
  }

  choose(name: string): void {
    this.chosen = name;
    this.draft = null;
    this._changed.emit();
  }

  setSkipVetted(within: string): void {
    this.skipVetted = within;
    this._changed.emit();
  }

  showAll(all: boolean): void {
    this._rows = all ? ALL_ROWS : FEW_ROWS;
    void this.refresh();
  }

  run(): Promise<void> {
    return this._do(async () => {
      if (this.protocol) {
        await this.requests.start(this.protocol, this._directory(), this.skipVetted);
      }
      await this.refresh();
    });
  }

  stop(): Promise<void> {
    return this._do(async () => {
      await this.requests.stop();
      await this.refresh();
    });
  }

  /** Open the selected protocol in the editor, or discard the changes. */
  async edit(open: boolean): Promise<void> {
    const { protocol } = this;
    if (!open || !protocol) {
      this.draft = null;
      this._changed.emit();
      return;
    }
    await this._do(async () => {
      const { text, ...meaning } = await this.requests.text(protocol, this._directory());
      const name = protocol.kind === 'notebook' ? protocol.name : `${protocol.name}-mine`;
      this.draft = { name, text, meaning, changed: false };
    });
  }

  /** Update the draft; the server checks it after a short delay. */
  type(part: { name?: string; text?: string }): void {
    if (!this.draft) {
      return;
    }
    const meaning = part.text === undefined ? this.draft.meaning : null;
    this.draft = { ...this.draft, ...part, meaning, changed: true };
    this._changed.emit();
    if (meaning === null) {
      void this._checks.invoke();
    }
  }

  /** Save the draft next to the notebook, and select it. */
  save(): Promise<void> {
    return this._do(async () => {
      if (this.draft) {
        const { name, text } = this.draft;
        const replace = this.protocol?.kind === 'notebook' && this.protocol.name === name;
        const place = await this.requests.save(this._directory(), name, text, replace);
        this.draft = null;
        this.chosen = protocolKey(place);
        await this.listProtocols();
      }
    });
  }

  share(share: boolean): Promise<void> {
    return this._do(async () => {
      this.shares = await this.requests.share(share);
    });
  }

  private async _look(): Promise<number | null> {
    let found: IVetting;
    try {
      found = await this.requests.look(this.grid ? (this.vetting?.version ?? '') : '', this._rows);
    } catch (error) {
      this.disconnected = true;
      this._changed.emit();
      throw error;
    }
    const same = found.version === this.vetting?.version && !this.disconnected;
    this.grid = found.grid ?? (found.version.includes(':') ? this.grid : null);
    this.vetting = found;
    this.disconnected = false;
    if (!same) {
      this._changed.emit();
    }
    return this._poll.pushed ? null : this.isRunning ? RUNNING_MS : IDLE_MS;
  }

  private async _check(): Promise<void> {
    const { draft } = this;
    if (draft) {
      const meaning = await this.requests.check(draft.text).catch(() => null);
      if (this.draft?.text === draft.text) {
        this.draft = { ...this.draft, meaning };
        this._changed.emit();
      }
    }
  }

  private async _do(task: () => Promise<void>): Promise<void> {
    this.busy = true;
    this.error = '';
    this._changed.emit();
    try {
      await task();
    } catch (error) {
      this.error = errorMessage(error);
    } finally {
      this.busy = false;
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _poll: ViewPoll;
  private readonly _checks = new Debouncer(() => this._check(), CHECK_MS);
  private _rows = FEW_ROWS;
  private _listing = 0;
}

/** Return the key of a protocol in the list of choices. */
export function protocolKey(place: ProtocolRef): string {
  return `${place.kind}:${place.file}`;
}
