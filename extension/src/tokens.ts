import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import type * as React from 'react';

import type { IJobDocument, IJobVerdicts, IRunInfo } from './api';

/** A section of the panel. */
export interface ISection {
  /** ID in the page, such as `saturation`. */
  readonly id: string;
  /** The text of its tab, translated. */
  readonly title: string;
  /** A few characters in the tab, also while another tab is selected, such as the number of running workloads. */
  readonly Badge?: React.ComponentType;
  /** A line above the content; use `role="status"` if it changes. */
  readonly Summary?: React.ComponentType;
  /** The content; mounted only while the tab is selected. */
  readonly Body: React.ComponentType;
  /**
   * Called when the section becomes visible or not; pause polling while it is not. It is visible if panel and page
   * are, and its tab is selected or has a badge.
   */
  setVisible?(visible: boolean): void;
}

/**
 * The panel in the right sidebar: the run of this server, and below it a tab for each section.
 *
 * An extension that requires it adds a section of its own:
 *
 *     requires: [IGipfelPanel],
 *     activate: (app: JupyterFrontEnd, panel: IGipfelPanel) => {
 *       panel.addSection({ id: 'quota', title: 'Quota', Body: Quota }, { rank: 350 });
 *     }
 */
export interface IGipfelPanel {
  /** Add a section, and remove it when the returned object is disposed; the section with the lowest rank is first. */
  addSection(section: ISection, options?: { readonly rank?: number }): IDisposable;
  /** Select the tab of a section by its ID, now or when it is added. */
  selectSection(id: string): void;
  /** The run that this server belongs to; null until the server has responded. */
  readonly run: IRunInfo | null;
  /** Emitted when `run` was fetched again. */
  readonly runChanged: ISignal<IGipfelPanel, void>;
  /** Fetch `run` again. */
  refreshRun(): Promise<void>;
}

export const IGipfelPanel = new Token<IGipfelPanel>(
  '@gipfel/extension:IGipfelPanel',
  'The Gipfel panel in the right sidebar, for adding sections to it.'
);

/** Views of launches for other parts of the page. */
export interface IGipfelLaunches {
  /** Create the view of one launch by its ID; null if this server does not know it. */
  createView(id: string): Promise<Widget | null>;
}

export const IGipfelLaunches = new Token<IGipfelLaunches>(
  '@gipfel/extension:IGipfelLaunches',
  'Views of launches that need no kernel.'
);

/** The user's workloads of one kind, such as a `WorkModel`. */
export interface IWorkloads<T> {
  /** Emitted when anything below has changed. */
  readonly changed: ISignal<unknown, void>;
  /** Null before the first response. */
  readonly items: readonly T[] | null;
  /** The last error, in one line; empty if there is none. */
  readonly error: string;
  /** Return true if an item has not ended. */
  isRunning(item: T): boolean;
  /** Poll only while the list is visible. */
  setVisible(visible: boolean): void;
}

/** A kind of workload in the panel's list. */
export interface IWorkloadKind<T> {
  /** The kind's name as `gipfel ps --kind` takes it, such as `launch`. */
  readonly id: string;
  /** Translated, in the plural, for the filter. */
  readonly title: string;
  /** Translated text of an empty list: how to start a workload; empty if panel and notebooks can't start this kind. */
  readonly emptyText: string;
  readonly workloads: IWorkloads<T>;
  /** Return an item's React key, unique in its kind. */
  readonly keyOf: (item: T) => string;
  /** Return when an item was created, in milliseconds since 1970. */
  readonly createdMs: (item: T) => number;
  readonly render: (item: T) => React.JSX.Element;
  /** Content below the list, such as a button that starts a workload. */
  readonly Footer?: React.ComponentType;
}

/**
 * The panel's list of workloads: running ones first, then the newest, of all kinds or of the one that is chosen.
 *
 * An extension that requires it adds a kind of its own with `addKind`.
 */
export interface IGipfelWorkloads {
  /** Add a kind, and remove it when the returned object is disposed. */
  addKind<T>(kind: IWorkloadKind<T>): IDisposable;
}

export const IGipfelWorkloads = new Token<IGipfelWorkloads>(
  '@gipfel/extension:IGipfelWorkloads',
  'The list of workloads in the Gipfel panel, for adding kinds to it.'
);

/** Units that can be selected on the job page, with their names in expressions such as `node=nid001`. */
export type JobUnit = 'rank' | 'node' | 'gpu' | 'nic' | 'switch';

/** The units that were clicked on the job page, all of one kind. */
export interface IJobPick {
  readonly unit: JobUnit;
  /** Ranks as digits, else names. */
  readonly names: readonly string[];
}

/** A time range, UTC in milliseconds. */
export interface IJobSpan {
  readonly sinceMs: number;
  readonly untilMs: number;
}

/**
 * The selection on the job page, shared by its tabs: if it changes in one, all tabs and the URL follow.
 *
 * The expression selects ranks by role. A pick, the clicked units, replaces it until the pick is cleared.
 */
export interface IJobSelection {
  /** Emitted when anything but the cursor has changed. */
  readonly changed: ISignal<IJobSelection, void>;
  /** Emitted when the cursor has moved. */
  readonly cursorMoved: ISignal<IJobSelection, void>;
  /** The name of the run; empty for the run of this server. */
  readonly run: string;
  /** `RUN/N` of a launch; empty for the newest one of the run. */
  readonly launch: string;
  /** Sizes of axes that the user typed, such as `pp=2,dp=4`; empty for the sizes that ranks and launch report. */
  readonly layout: string;
  /** The role expression, such as `pp=6,7 & dp=0`; empty for all ranks. */
  readonly expression: string;
  readonly pick: IJobPick | null;
  /** The time range; null for the last seconds or the whole run. */
  readonly span: IJobSpan | null;
  /** The last seconds up to the newest sample that are shown without a span; null for the whole run. */
  readonly lastS: number | null;
  /** The time under the pointer, in all plots; null while the pointer is elsewhere. */
  readonly cursorMs: number | null;
  /** The ranks that pick or expression select, as the server resolved them; empty if nothing is selected. */
  readonly ranks: readonly number[];
  /** The nodes of these ranks. */
  readonly nodes: readonly string[];
  /** UUIDs of the devices that are selected. */
  readonly devices: readonly string[];
  /** The ranks of the expression alone; empty without one. */
  readonly group: readonly number[];
  /** True if the theme is dark. */
  readonly dark: boolean;
  /** Show a run, and one of its launches; reset the rest of the selection. */
  show(run: string, launch?: string): void;
  setLayout(layout: string): void;
  setExpression(expression: string): void;
  /** Select clicked units; with `add`, add them to the pick. If they are the whole pick already, clear it. */
  choose(unit: JobUnit, names: readonly string[], add?: boolean): void;
  /** Clear the pick, or the expression if nothing is picked. */
  clear(): void;
  setSpan(span: IJobSpan | null): void;
  setLast(seconds: number | null): void;
  setCursor(timeMs: number | null): void;
}

/** The job that the page shows; `changed` is emitted with each new answer of the server. */
export interface IJobState {
  readonly changed: ISignal<IJobState, void>;
  /** Ranks, events and names of metrics; null before the first response. */
  readonly job: IJobDocument | null;
  /** Verdicts, the worst first; null before the first response. */
  readonly verdicts: IJobVerdicts | null;
  /** The last error, in one line; empty if the last request succeeded. */
  readonly error: string;
  /** Time of the last response, in milliseconds on the browser's clock; 0 before the first one. */
  readonly receivedMs: number;
}

/** Properties of a tab's content. */
export interface IJobTabProps {
  readonly selection: IJobSelection;
  readonly state: IJobState;
}

/** A tab of the job page. */
export interface IJobTab {
  /** ID in the page and in its URL: letters, digits and hyphens. */
  readonly id: string;
  /** The text of its tab, translated. */
  readonly title: string;
  /** The content; mounted only while the tab is selected and rendered again when selection or job change. */
  readonly Body: React.ComponentType<IJobTabProps>;
  /** Called when the tab becomes visible or not; pause polling while it is not. */
  setVisible?(visible: boolean): void;
}

/** A part below the content of a tab, folded until the user opens it. */
export interface IJobPart extends Pick<IJobTab, 'id' | 'title' | 'Body'> {
  /** The ID of the tab. */
  readonly tab: string;
  /** True if it is open from the beginning. */
  readonly open?: boolean;
}

/**
 * The job page in the main area: all ranks of a run.
 *
 * An extension that requires it adds a tab, or a part of a tab, of its own:
 *
 *     requires: [IGipfelJob],
 *     activate: (app: JupyterFrontEnd, job: IGipfelJob) => {
 *       job.addTab({ id: 'topology', title: 'Topology', Body: Topology }, { rank: 30 });
 *     }
 */
export interface IGipfelJob {
  readonly selection: IJobSelection;
  readonly state: IJobState;
  /** Add a tab, and remove it when the returned object is disposed; the tab with the lowest rank is first. */
  addTab(tab: IJobTab, options?: { readonly rank?: number }): IDisposable;
  /** Add a part below the content of a tab, in the order of `rank`. */
  addPart(part: IJobPart, options?: { readonly rank?: number }): IDisposable;
  /** Open the page with a run, and one of its launches; without a run, with the run that it showed last. */
  open(run?: string, launch?: string): void;
}

export const IGipfelJob = new Token<IGipfelJob>(
  '@gipfel/extension:IGipfelJob',
  'The job page in the main area, for adding tabs to it.'
);
