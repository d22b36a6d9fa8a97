import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import type * as React from 'react';

import type { IRunInfo } from './api';

/** A section of the panel. */
export interface ISection {
  /** ID in the page, such as `saturation`. */
  readonly id: string;
  /** The heading, translated. */
  readonly title: string;
  /** True to start collapsed. */
  readonly collapsed?: boolean;
  /** Short text next to the heading, also while the section is collapsed; use `role="status"` if it changes. */
  readonly Summary?: React.ComponentType;
  /** The content below the heading; mounted only while the section is open. */
  readonly Body: React.ComponentType;
  /** Called when the section becomes visible (it is open, panel and page are visible) or not; pause polling then. */
  setVisible?(visible: boolean): void;
}

/**
 * The panel in the right sidebar: the run of this server, and the sections below it.
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
  /** How to start the first one, translated; empty if it can't be started from the panel or a notebook. */
  readonly emptyText: string;
  readonly workloads: IWorkloads<T>;
  /** Return an item's React key, unique in its kind. */
  readonly keyOf: (item: T) => string;
  /** Return when an item was created, in milliseconds since 1970. */
  readonly createdMs: (item: T) => number;
  readonly render: (item: T) => React.JSX.Element;
  /** Below the list, such as a button that starts one. */
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
