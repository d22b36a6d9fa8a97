import type { IStateDB } from '@jupyterlab/statedb';
import { Signal, type ISignal } from '@lumino/signaling';

import type { ISection } from '../tokens';

const KEY = '@gipfel/extension:open-sections';

/** The sections that are open: as they start, or as the user left them in this workspace. */
export class OpenSections {
  constructor(private readonly _state: IStateDB | null) {}

  /** Emitted when a section was opened or closed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Load the saved state. */
  async load(): Promise<void> {
    const kept = await this._state?.fetch(KEY).catch(() => undefined);
    if (typeof kept === 'object' && kept !== null) {
      this._open = { ...(kept as Record<string, boolean>), ...this._open };
      this._changed.emit();
    }
  }

  isOpen(section: ISection): boolean {
    return this._open[section.id] ?? section.collapsed !== true;
  }

  /** Open or close a section, and save the state. */
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
