import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import * as React from 'react';

import type { IRunInfo } from '../api';
import { mountainIcon } from '../common/icon';
import type { IGipfelPanel, ISection } from '../tokens';
import { Header } from './header';
import type { RunModel } from './run';
import type { SelectedSection } from './selected-section';
import { Tabs } from './tabs';
import { Tour, TourCard, type ITourStep } from './tour';

const LAST_RANK = 1000;

/** The panel: the header with the run of this server, and below it a tab for each section that plugins add. */
export class GipfelPanel extends ReactWidget implements IGipfelPanel {
  constructor(
    private readonly model: RunModel,
    private readonly selectedSection: SelectedSection,
    private readonly trans: TranslationBundle,
    tourSteps: readonly ITourStep[] = []
  ) {
    super();
    this.tour = new Tour(
      tourSteps,
      id => this._sections.some(each => each.section.id === id),
      id => {
        this.selectSection(id);
      }
    );
    model.changed.connect(() => {
      this._runChanged.emit();
    });
    selectedSection.changed.connect(() => {
      this._sectionsChanged.emit();
    });
    this.id = 'gipfel-panel';
    this.addClass('jp-Gipfel-panel');
    this.title.icon = mountainIcon;
    this.title.caption = trans.__('Gipfel: saturation of GPUs and host');
    document.addEventListener('visibilitychange', this._onVisibility);
    window.addEventListener('resize', this._onLayout);
  }

  /** The tour through the panel for a new user. */
  readonly tour: Tour;

  addSection(section: ISection, options: { readonly rank?: number } = {}): IDisposable {
    if (this._sections.some(each => each.section.id === section.id)) {
      throw new Error(`The panel already has a section '${section.id}'.`);
    }
    const added = { section, rank: options.rank ?? LAST_RANK };
    this._sections = [...this._sections, added].sort((a, b) => a.rank - b.rank);
    this._sectionsChanged.emit();
    return new DisposableDelegate(() => {
      this._sections = this._sections.filter(each => each !== added);
      this._sectionsChanged.emit();
    });
  }

  selectSection(id: string): void {
    this.selectedSection.select(id);
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

  /** Make JupyterLab measure the panel again if its minimum width has changed with the window or the left sidebar. */
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
    for (const { section } of this._sections) {
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
        <UseSignal signal={this._runChanged}>
          {(): React.JSX.Element => <Header run={this.run} trans={this.trans} />}
        </UseSignal>
        <UseSignal signal={this.tour.changed}>
          {(): React.JSX.Element => <TourCard tour={this.tour} trans={this.trans} />}
        </UseSignal>
        <UseSignal signal={this._sectionsChanged}>
          {(): React.JSX.Element | null => this.renderTabs()}
        </UseSignal>
      </>
    );
  }

  private renderTabs(): React.JSX.Element | null {
    const sections = this._sections.map(({ section }) => section);
    const selected = this.selectedSection.of(sections);
    return selected === undefined ? null : (
      <Tabs
        sections={sections}
        selected={selected}
        visible={this._visible}
        onSelect={section => {
          this.selectSection(section.id);
        }}
        trans={this.trans}
      />
    );
  }

  private readonly _onVisibility = (): void => {
    const visible = this.isVisible && document.visibilityState === 'visible';
    if (visible !== this._visible) {
      this._visible = visible;
      this._sectionsChanged.emit();
      if (visible) {
        void this.refreshRun();
      }
    }
  };

  private readonly _onLayout = (): void => {
    this.fitLayout();
  };

  private readonly _runChanged = new Signal<this, void>(this);
  /** Emitted when sections are added or removed, another one is selected, or the panel is shown or hidden. */
  private readonly _sectionsChanged = new Signal<this, void>(this);
  private _sections: readonly { readonly section: ISection; readonly rank: number }[] = [];
  private _visible = false;
  private _minWidth = '';
}
