import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { Header } from './header';
import { mountainIcon } from './icon';
import type { SaturationModel } from './model';
import { Section, type ISection } from './section';

/** The sidebar: where the server runs, and below it one section for each subject. */
export class GipfelPanel extends ReactWidget {
  constructor(
    private readonly model: SaturationModel,
    private readonly sections: readonly ISection[],
    private readonly trans: TranslationBundle
  ) {
    super();
    this.id = 'gipfel-panel';
    this.addClass('jp-Gipfel-panel');
    this.title.icon = mountainIcon;
    this.title.caption = trans.__('Gipfel: saturation of GPUs and host');
    document.addEventListener('visibilitychange', this._onVisibility);
    window.addEventListener('resize', this._onLayout);
  }

  /** Have the lab measure the panel again where its least width has changed with the window or the left sidebar. */
  fitLayout(): void {
    const { minWidth } = getComputedStyle(this.node);
    if (minWidth !== this._minWidth) {
      this._minWidth = minWidth;
      this.parent?.fit();
    }
  }

  override dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.removeEventListener('resize', this._onLayout);
    for (const section of this.sections) {
      section.setVisible?.(false);
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

  protected override render(): React.JSX.Element {
    return (
      <>
        <UseSignal signal={this.model.runChanged}>
          {(): React.JSX.Element => <Header run={this.model.run} trans={this.trans} />}
        </UseSignal>
        <UseSignal signal={this._visibleChanged}>
          {(): React.JSX.Element => (
            <>
              {this.sections.map(section => (
                <Section key={section.id} section={section} visible={this._visible} />
              ))}
            </>
          )}
        </UseSignal>
      </>
    );
  }

  private readonly _onVisibility = (): void => {
    const visible = this.isVisible && document.visibilityState === 'visible';
    if (visible !== this._visible) {
      this._visible = visible;
      this._visibleChanged.emit(visible);
    }
  };

  private readonly _onLayout = (): void => {
    this.fitLayout();
  };

  private readonly _visibleChanged = new Signal<this, boolean>(this);
  private _visible = false;
  private _minWidth = '';
}
