import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';

import type { IRunInfo } from '../api';
import { mountainIcon } from '../common/icon';
import type { IGipfelPanel, ISection } from '../tokens';
import { PanelWidget } from './content';
import type { RunModel } from './run';
import type { SectionList } from './section-list';
import { Tour, TourCard, type ITourStep } from './tour';

/** The panel in the sidebar: the header with the run of this server, and below it a tab for each section. */
export class GipfelPanel extends PanelWidget implements IGipfelPanel {
  /** @param _openWide Opens the panel in the main area; null where that is not possible. */
  constructor(
    model: RunModel,
    sections: SectionList,
    trans: TranslationBundle,
    tourSteps: readonly ITourStep[] = [],
    private readonly _openWide: (() => void) | null = null
  ) {
    super(model, sections, trans);
    this.tour = new Tour(
      tourSteps,
      id => sections.all.some(each => each.id === id),
      id => {
        this.selectSection(id);
      }
    );
    model.changed.connect(() => {
      this._runChanged.emit();
    });
    this.id = 'gipfel-panel';
    this.addClass('jp-Gipfel-panel');
    this.title.icon = mountainIcon;
    this.title.caption = trans.__('Gipfel: saturation of GPUs and host');
    window.addEventListener('resize', this._onLayout);
  }

  /** The tour through the panel for a new user. */
  readonly tour: Tour;

  addSection(section: ISection, options: { readonly rank?: number } = {}): IDisposable {
    return this.sections.add(section, options.rank);
  }

  selectSection(id: string): void {
    this.sections.select(id);
  }

  get run(): IRunInfo | null {
    return this.model.run;
  }

  get runChanged(): ISignal<this, void> {
    return this._runChanged;
  }

  refreshRun(): Promise<void> {
    return this.model.refresh();
  }

  /** Emitted when the panel becomes visible. */
  get shown(): ISignal<this, void> {
    return this._shown;
  }

  /** Make JupyterLab measure the panel again if its minimum width has changed with the window or the left sidebar. */
  fitLayout(): void {
    const { minWidth } = getComputedStyle(this.node);
    if (minWidth !== this._minWidth) {
      this._minWidth = minWidth;
      this.parent?.fit();
    }
  }

  override dispose(): void {
    window.removeEventListener('resize', this._onLayout);
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._shown.emit();
  }

  protected override render(): React.JSX.Element {
    const openWide = this._openWide;
    return (
      <>
        {this.renderHeader(
          openWide && (
            <button
              className="jp-Gipfel-button jp-mod-small"
              title={this.trans.__('Open the panel wide, in a tab of the main area')}
              onClick={openWide}
            >
              {this.trans.__('Open wide')}
            </button>
          )
        )}
        <UseSignal signal={this.tour.changed}>
          {(): React.JSX.Element => <TourCard tour={this.tour} trans={this.trans} />}
        </UseSignal>
        {this.renderTabs()}
      </>
    );
  }

  private readonly _onLayout = (): void => {
    this.fitLayout();
  };

  private readonly _shown = new Signal<this, void>(this);
  private readonly _runChanged = new Signal<this, void>(this);
  private _minWidth = '';
}
