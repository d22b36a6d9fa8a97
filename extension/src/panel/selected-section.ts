import type { IStateDB } from '@jupyterlab/statedb';
import { Signal, type ISignal } from '@lumino/signaling';

import type { ISection } from '../tokens';

const KEY = '@gipfel/extension:selected-section';

/** The section whose tab is selected: the first one, or the one that the user chose in this workspace. */
export class SelectedSection {
  constructor(private readonly _state: IStateDB | null) {}

  /** Emitted when another section was selected. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Load the saved choice. */
  async load(): Promise<void> {
    const saved = await this._state?.fetch(KEY).catch(() => undefined);
    if (typeof saved === 'string' && this._id === null) {
      this._id = saved;
      this._changed.emit();
    }
  }

  /** Return the selected one of these sections; the first one if the chosen section is not among them. */
  of(sections: readonly ISection[]): ISection | undefined {
    return sections.find(each => each.id === this._id) ?? sections[0];
  }

  /** Select a section by its ID, and save the choice. */
  select(id: string): void {
    if (id !== this._id) {
      this._id = id;
      this._changed.emit();
      void this._state?.save(KEY, id);
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private _id: string | null = null;
}
