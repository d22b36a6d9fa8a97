import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import type { ISection } from '../tokens';
import type { SelectedSection } from './selected-section';

/** Position (JupyterLab's `rank`) of sections that are added without one: after the panel's own. */
const DEFAULT_POSITION = 1000;

/** The sections that plugins add, the selected one, and in which widgets they are visible. */
export class SectionList {
  constructor(private readonly _selected: SelectedSection) {
    _selected.changed.connect(() => {
      this._changed.emit();
    });
  }

  /** Emitted when sections are added or removed, another one is selected, or all are to be drawn again. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** All sections, by rank. */
  get all(): readonly ISection[] {
    return this._sections.map(({ section }) => section);
  }

  /** The selected section; none without any. */
  get selected(): ISection | undefined {
    return this._selected.of(this.all);
  }

  /** Draw all sections again. */
  redraw(): void {
    this._changed.emit();
  }

  /** Select a section by its ID, now or when it is added. */
  select(id: string): void {
    this._selected.select(id);
  }

  /** Add a section, and remove it when the returned object is disposed. */
  add(section: ISection, rank = DEFAULT_POSITION): IDisposable {
    if (this.all.some(each => each.id === section.id)) {
      throw new Error(`The panel already has a section '${section.id}'.`);
    }
    const added = { section, rank };
    this._sections = [...this._sections, added].sort((a, b) => a.rank - b.rank);
    this._changed.emit();
    return new DisposableDelegate(() => {
      this._sections = this._sections.filter(each => each !== added);
      this._changed.emit();
    });
  }

  /** Set whether a section is visible in one widget; the section is told whether it is in any. */
  setVisible(section: ISection, widget: object, visible: boolean): void {
    const widgets = this._visibleIn.get(section) ?? new Set();
    this._visibleIn.set(section, widgets);
    if (visible) {
      widgets.add(widget);
    } else {
      widgets.delete(widget);
    }
    section.setVisible?.(widgets.size > 0);
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _visibleIn = new Map<ISection, Set<object>>();
  private _sections: readonly { readonly section: ISection; readonly rank: number }[] = [];
}
