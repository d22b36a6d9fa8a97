import { Debouncer } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IGrid, IProtocolMeaning, IProtocolListing, IVetting } from '../api';
import { lineOf } from '../common/error-line';
import { ViewPoll } from '../common/view-poll';
import type { ProtocolPlace, VettingRequests } from './requests';

const RUNNING_MS = 1_000;
/** None runs: only one that is started elsewhere, such as in a terminal, would be news. */
const REST_MS = 30_000;
const FEW_ROWS = 40;
const ALL_ROWS = 5_000;
const CHECK_MS = 400;

/** A protocol that is being changed. */
export interface IDraft {
  readonly name: string;
  readonly text: string;
  readonly meaning: IProtocolMeaning | null;
  readonly changed: boolean;
}

/** What the panel knows of vetting, asked for while somebody looks. */
export class VettingModel {
  /**
   * @param directory Says where the notebook is that one works in, as a path of the server.
   */
  constructor(
    readonly requests: VettingRequests,
    private readonly _directory: () => string
  ) {}

  /** Emitted when anything below has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Where the newest vetting stands; null before the first answer. */
  vetting: IVetting | null = null;
  grid: IGrid | null = null;
  protocols: readonly IProtocolListing[] | null = null;
  /** Whether the site has a registry. */
  registry = false;
  shares = false;
  /** The chosen protocol, as `kind:file`. */
  chosen = 'shipped:quick';
  skipVetted = '';
  draft: IDraft | null = null;
  /** What went wrong with the last thing that was asked for; and whether the server does not answer at all. */
  error = '';
  unheard = false;
  busy = false;

  get all(): boolean {
    return this._rows > FEW_ROWS;
  }

  get runs(): boolean {
    return this.vetting?.state === 'running' || this.vetting?.state === 'starting';
  }

  /** The chosen protocol, as far as it is still in the list. */
  get protocol(): IProtocolListing | undefined {
    return this.protocols?.find(each => nameOf(each) === this.chosen);
  }

  /** Ask while the section is visible, and rest while it is not. */
  setVisible(visible: boolean): void {
    this._poll.setVisible(visible);
    if (visible) {
      void this.listProtocols();
    }
  }

  /** Ask now. */
  refresh(): Promise<void> {
    return this._poll.refresh();
  }

  /** Read the list of protocols again. */
  async listProtocols(): Promise<void> {
    this._listing += 1;
    const listing = this._listing;
    try {
      const { protocols, registry } = await this.requests.protocols(this._directory());
      if (listing !== this._listing) {
        // An older list lacks what was saved meanwhile.
        return;
      }
      this.protocols = protocols;
      this.registry = registry;
      if (!this.protocol) {
        const usual = protocols.find(each => each.kind === 'shipped' && each.name === 'quick');
        this.chosen = usual ? nameOf(usual) : '';
      }
      if (registry) {
        this.shares = await this.requests.shares();
      }
    } catch (error) {
      this.error = lineOf(error);
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

  /** Open the chosen protocol for changes, or put them away. */
  async edit(open: boolean): Promise<void> {
    const { protocol } = this;
    if (!open || !protocol) {
      this.draft = null;
      this._changed.emit();
      return;
    }
    await this._do(async () => {
      const { text, ...meaning } = await this.requests.text(protocol, this._directory());
      const name = protocol.kind === 'beside' ? protocol.name : `${protocol.name}-mine`;
      this.draft = { name, text, meaning, changed: false };
    });
  }

  /** Take what is typed; a moment later the server says what it means. */
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

  /** Keep it beside the notebook, and choose it. */
  save(): Promise<void> {
    return this._do(async () => {
      if (this.draft) {
        const { name, text } = this.draft;
        const replace = this.protocol?.kind === 'beside' && this.protocol.name === name;
        const place = await this.requests.save(this._directory(), name, text, replace);
        this.draft = null;
        this.chosen = nameOf(place);
        await this.listProtocols();
      }
    });
  }

  share(share: boolean): Promise<void> {
    return this._do(async () => {
      this.shares = await this.requests.share(share);
    });
  }

  private async _look(): Promise<number> {
    let found: IVetting;
    try {
      found = await this.requests.look(this.grid ? (this.vetting?.version ?? '') : '', this._rows);
    } catch (error) {
      this.unheard = true;
      this._changed.emit();
      throw error;
    }
    const same = found.version === this.vetting?.version && !this.unheard;
    this.grid = found.grid ?? (found.version.includes(':') ? this.grid : null);
    this.vetting = found;
    this.unheard = false;
    if (!same) {
      this._changed.emit();
    }
    return this.runs ? RUNNING_MS : REST_MS;
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
      this.error = lineOf(error);
    } finally {
      this.busy = false;
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _poll = new ViewPoll('vetting', () => this._look());
  private readonly _checks = new Debouncer(() => this._check(), CHECK_MS);
  private _rows = FEW_ROWS;
  private _listing = 0;
}

/** How a protocol is called in the list of choices. */
export function nameOf(place: ProtocolPlace): string {
  return `${place.kind}:${place.file}`;
}
