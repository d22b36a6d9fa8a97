import type { IStateDB } from '@jupyterlab/statedb';
import { Signal, type ISignal } from '@lumino/signaling';

import type { ISection } from '../tokens';

const KEY = '@gipfel/extension:open-sections';

/** Which sections are open: as they begin, unless the user has opened or closed one in this workspace. */
export class Folds {
  constructor(private readonly _state: IStateDB | null) {}

  /** Emitted when a section was opened or closed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Read what was kept. */
  async load(): Promise<void> {
    const kept = await this._state?.fetch(KEY).catch(() => undefined);
    if (typeof kept === 'object' && kept !== null) {
      this._open = { ...(kept as Record<string, boolean>), ...this._open };
      this._changed.emit();
    }
  }

  isOpen(section: ISection): boolean {
    return this._open[section.id] ?? section.folded !== true;
  }

  /** Open or close a section, and keep that. */
  set(section: ISection, open: boolean): void {
    if (open !== this.isOpen(section)) {
      this._open = { ...this._open, [section.id]: open };
      this._changed.emit();
      void this._state?.save(KEY, this._open);
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private _open: Record<string, boolean> = {};
}
