import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import type * as React from 'react';

import type { IRunInfo } from './api';

/** One part of the panel. */
export interface ISection {
  /** Names it in the page, such as `saturation`. */
  readonly id: string;
  /** The heading, translated. */
  readonly title: string;
  /** Whether it begins closed. */
  readonly folded?: boolean;
  /** A few words beside the heading, also while it is closed; a `role="status"` where they change. */
  readonly Summary?: React.ComponentType;
  /** What is below the heading; mounted only while the section is open. */
  readonly Body: React.ComponentType;
  /** Called with whether the section is visible: open, the panel shown, the page in front. Rest while it is not. */
  setVisible?(visible: boolean): void;
}

/**
 * The panel in the right sidebar: what this server runs in, and the sections below it.
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
  /** What this server runs in; null until the server has answered. */
  readonly run: IRunInfo | null;
  /** Emitted when `run` is read again. */
  readonly runChanged: ISignal<IGipfelPanel, void>;
  /** Read again what this server runs in. */
  refreshRun(): Promise<void>;
}

export const IGipfelPanel = new Token<IGipfelPanel>(
  '@gipfel/extension:IGipfelPanel',
  'The Gipfel panel in the right sidebar, for adding sections to it.'
);

/** Views of launches for other parts of the page. */
export interface IGipfelLaunches {
  /** Create the view of one launch by its ID; null where this server does not know it. */
  createView(id: string): Promise<Widget | null>;
}

export const IGipfelLaunches = new Token<IGipfelLaunches>(
  '@gipfel/extension:IGipfelLaunches',
  'Views of launches that need no kernel.'
);
