import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';

import { mountainIcon } from '../common/icon';
import { Tabs } from '../panel/tabs';
import type { IJobPart, IJobTab, IJobTabProps, ISection } from '../tokens';
import { Depth } from './depth';
import { Earlier } from './earlier';
import { Events } from './events';
import type { JobFigures } from './figures';
import { Header } from './header';
import type { IPageLocation } from './location';
import { Metrics, Nics } from './metrics';
import type { JobModel } from './model';
import { Overview } from './overview';
import { Ranks } from './ranks';

/** ID of the tab on security: verdict and findings on the job's image. */
export const SECURITY_TAB = 'security';
/** Position (JupyterLab's `rank`) of tabs and parts that are added without one: after the page's own. */
const DEFAULT_POSITION = 1000;
/** Width from which plots stand side by side, as `style/job.css` has it. */
const TWO_COLUMNS = 1100;

interface IRanked<T> {
  readonly item: T;
  readonly rank: number;
}

/** The tabs of the page and the parts below their content; plugins add to them before and after it is opened. */
export class JobTabs {
  /** Emitted when tabs or parts were added or removed, or another tab is selected. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get tabs(): readonly IJobTab[] {
    return this._tabs.map(each => each.item);
  }

  /** The selected tab: the chosen one if it is there, else the first. */
  get selected(): IJobTab | undefined {
    return this.tabs.find(each => each.id === this._chosen) ?? this.tabs[0];
  }

  /** Return the parts of a tab. */
  parts(tab: string): readonly IJobPart[] {
    return this._parts.map(each => each.item).filter(each => each.tab === tab);
  }

  /** Select a tab by its ID, now or when it is added. */
  select(id: string): void {
    if (id !== this._chosen) {
      this._chosen = id;
      this._changed.emit();
    }
  }

  addTab(tab: IJobTab, rank = DEFAULT_POSITION): IDisposable {
    if (this.tabs.some(each => each.id === tab.id)) {
      throw new Error(`The job page already has a tab '${tab.id}'.`);
    }
    this._tabs = inserted(this._tabs, tab, rank);
    return this._added(() => {
      this._tabs = this._tabs.filter(each => each.item !== tab);
    });
  }

  addPart(part: IJobPart, rank = DEFAULT_POSITION): IDisposable {
    this._parts = inserted(this._parts, part, rank);
    return this._added(() => {
      this._parts = this._parts.filter(each => each.item !== part);
    });
  }

  private _added(remove: () => void): IDisposable {
    this._changed.emit();
    return new DisposableDelegate(() => {
      remove();
      this._changed.emit();
    });
  }

  private readonly _changed = new Signal<this, void>(this);
  private _tabs: readonly IRanked<IJobTab>[] = [];
  private _parts: readonly IRanked<IJobPart>[] = [];
  private _chosen = '';
}

function inserted<T>(items: readonly IRanked<T>[], item: T, rank: number): readonly IRanked<T>[] {
  return [...items, { item, rank }].sort((a, b) => a.rank - b.rank);
}

/**
 * The job page: the header, where run, launch, ranks (by roles such as `pp=0 & dp=1`) and time range are
 * selected, and below it the tabs.
 */
export class JobPage extends ReactWidget {
  constructor(
    readonly model: JobModel,
    readonly tabs: JobTabs,
    readonly trans: TranslationBundle
  ) {
    super();
    this.id = 'gipfel-job';
    this.addClass('jp-Gipfel-job');
    this.title.label = trans.__('Job');
    this.title.caption = trans.__('All ranks of a run: where they run, what they do, what is wrong');
    this.title.icon = mountainIcon;
    this.title.closable = true;
    // Without the focus JupyterLab does not take it for the current widget.
    this.node.tabIndex = -1;
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  /** What the page's URL holds. */
  get location(): IPageLocation {
    return { tab: this.tabs.selected?.id ?? '', ...this.model.selection.state };
  }

  override dispose(): void {
    if (!this.isDisposed) {
      document.removeEventListener('visibilitychange', this._onVisibility);
      this.model.setVisible(false);
      super.dispose();
    }
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._onVisibility();
  }

  protected override onResize(message: Widget.ResizeMessage): void {
    super.onResize(message);
    const wide = message.width >= TWO_COLUMNS;
    this.model.setWidth(wide ? message.width / 2 : message.width);
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
      <div
        className="jp-Gipfel-job-content"
        onKeyDown={event => {
          if (event.key === 'Escape') {
            this.model.selection.clear();
          }
        }}
      >
        <Follow model={this.model}>{() => <Header model={this.model} trans={this.trans} />}</Follow>
        <UseSignal signal={this.tabs.changed}>{(): React.JSX.Element | null => this._renderTabs()}</UseSignal>
      </div>
    );
  }

  private _renderTabs(): React.JSX.Element | null {
    const sections = this.tabs.tabs.map(tab => this._section(tab));
    const selected = sections.find(each => each.id === this.tabs.selected?.id);
    return selected === undefined ? null : (
      <Tabs
        sections={sections}
        selected={selected}
        visible={this._visible}
        prefix="gipfel-job"
        label={this.trans.__('Tabs of the job page')}
        onSelect={section => {
          this.tabs.select(section.id);
        }}
        trans={this.trans}
      />
    );
  }

  /** Return a tab as a section, the same one each time: its content would be mounted again otherwise. */
  private _section(tab: IJobTab): ISection {
    let section = this._sections.get(tab);
    if (section === undefined) {
      section = {
        id: tab.id,
        title: tab.title,
        Body: () => <TabBody tab={tab} page={this} />,
        setVisible: visible => tab.setVisible?.(visible)
      };
      this._sections.set(tab, section);
    }
    return section;
  }

  private readonly _onVisibility = (): void => {
    this._visible = this.isVisible && document.visibilityState === 'visible';
    this.model.setVisible(this._visible);
    this.update();
  };

  private readonly _sections = new WeakMap<IJobTab, ISection>();
  private _visible = false;
}

/** Renders its children again when selection or job change. */
function Follow(props: { model: JobModel; children: () => React.JSX.Element }): React.JSX.Element {
  const { model, children } = props;
  return (
    <UseSignal signal={model.selection.changed}>
      {(): React.JSX.Element => (
        <UseSignal signal={model.changed}>{(): React.JSX.Element => children()}</UseSignal>
      )}
    </UseSignal>
  );
}

function TabBody(props: { tab: IJobTab; page: JobPage }): React.JSX.Element {
  const { tab, page } = props;
  const { model, tabs } = page;
  return (
    <Follow model={model}>
      {() => (
        <div className="jp-Gipfel-job-tab">
          <tab.Body selection={model.selection} state={model} />
          <UseSignal signal={tabs.changed}>
            {(): React.JSX.Element => (
              <>
                {tabs.parts(tab.id).map(part => (
                  <Part key={part.id} part={part} selection={model.selection} state={model} />
                ))}
              </>
            )}
          </UseSignal>
          {/* Which further data this tab could show, and how to record them. */}
          <Depth tab={tab.id} job={model.job} trans={page.trans} />
        </div>
      )}
    </Follow>
  );
}

/** A part below the content of a tab; its content is drawn only while it is open. */
function Part(props: IJobTabProps & { readonly part: IJobPart }): React.JSX.Element {
  const { part, selection, state } = props;
  const [open, setOpen] = React.useState(part.open === true);
  return (
    <details
      className="jp-Gipfel-job-part"
      data-part={part.id}
      open={open}
      onToggle={event => {
        setOpen(event.currentTarget.open);
      }}
    >
      <summary>{part.title}</summary>
      {open && <part.Body selection={selection} state={state} />}
    </details>
  );
}

/** Add the page's own tabs, and its parts of these and of the tab `topology`. */
export function addOwnTabs(
  tabs: JobTabs,
  model: JobModel,
  figures: JobFigures,
  trans: TranslationBundle
): void {
  const common = { model, figures, trans };
  const onSecurity = (): void => {
    tabs.select(SECURITY_TAB);
  };
  const Body = (): React.JSX.Element => <Overview {...common} onSecurity={onSecurity} />;
  tabs.addTab({ id: 'overview', title: trans.__('Overview'), Body }, 10);
  tabs.addTab({ id: 'ranks', title: trans.__('Ranks'), Body: () => <Ranks {...common} /> }, 20);
  tabs.addTab({ id: 'metrics', title: trans.__('Metrics'), Body: () => <Metrics {...common} /> }, 40);
  const part = (id: string, tab: string, title: string, Body: IJobPart['Body'], open = false): void => {
    tabs.addPart({ id, tab, title, Body, open }, 10);
  };
  part('nics', 'topology', trans.__('NICs over time'), () => <Nics {...common} />, true);
  part('earlier', 'overview', trans.__('Earlier runs of the same script'), () => <Earlier {...common} />);
  tabs.addTab({ id: 'events', title: trans.__('Events'), Body: () => <Events {...common} /> }, 50);
}
