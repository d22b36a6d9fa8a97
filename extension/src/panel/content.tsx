import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';

import { Header } from './header';
import type { RunModel } from './run';
import type { SectionList } from './section-list';
import { Tabs } from './tabs';

/** What the sidebar and the page in the main area show: the run of this server, and the sections in tabs. */
export abstract class PanelWidget extends ReactWidget {
  constructor(
    protected readonly model: RunModel,
    protected readonly sections: SectionList,
    protected readonly trans: TranslationBundle
  ) {
    super();
    sections.changed.connect(this._onSections);
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  /** Emitted when sections or the visibility of this widget have changed. */
  protected get contentChanged(): ISignal<this, void> {
    return this._contentChanged;
  }

  override dispose(): void {
    this.sections.changed.disconnect(this._onSections);
    document.removeEventListener('visibilitychange', this._onVisibility);
    for (const section of this.sections.all) {
      this.sections.setVisible(section, this, false);
    }
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._onVisibility();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._onVisibility();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._onVisibility();
  }

  /** Return the header, with buttons at its end. */
  protected renderHeader(buttons: React.ReactNode): React.JSX.Element {
    return (
      <UseSignal signal={this.model.changed}>
        {(): React.JSX.Element => (
          <Header run={this.model.run} trans={this.trans}>
            {buttons}
          </Header>
        )}
      </UseSignal>
    );
  }

  /** Return the sections in tabs. */
  protected renderTabs(): React.JSX.Element {
    return (
      <UseSignal signal={this.contentChanged}>
        {(): React.JSX.Element | null => {
          const { selected } = this.sections;
          return selected === undefined ? null : (
            <Tabs
              prefix={this.id}
              sections={this.sections.all}
              selected={selected}
              visible={this._visible}
              onSelect={section => {
                this.sections.select(section.id);
              }}
              onVisible={(section, visible) => {
                this.sections.setVisible(section, this, visible);
              }}
              trans={this.trans}
            />
          );
        }}
      </UseSignal>
    );
  }

  private readonly _onSections = (): void => {
    this._contentChanged.emit();
  };

  private readonly _onVisibility = (): void => {
    const visible = this.isVisible && document.visibilityState === 'visible';
    if (visible !== this._visible) {
      this._visible = visible;
      this._contentChanged.emit();
      if (visible) {
        void this.model.refresh();
      }
    }
  };

  private readonly _contentChanged = new Signal<this, void>(this);
  private _visible = false;
}
