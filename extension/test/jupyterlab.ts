/** Stands in for all of JupyterLab's packages: tokens, and as much of the rest as the tests touch. */
import { Token } from '@lumino/coreutils';
import { Widget } from '@lumino/widgets';
import type * as React from 'react';

const token = (name: string): Token<unknown> => new Token(`jupyterlab:${name}`);

export const ICommandPalette = token('ICommandPalette');
export const IEditorServices = token('IEditorServices');
export const ILabShell = token('ILabShell');
export const ILauncher = token('ILauncher');
export const ILayoutRestorer = token('ILayoutRestorer');
export const IDefaultFileBrowser = token('IDefaultFileBrowser');
export const IFileBrowserFactory = token('IFileBrowserFactory');
export const INotebookTracker = token('INotebookTracker');
export const IRenderMimeRegistry = token('IRenderMimeRegistry');
export const IRouter = token('IRouter');
export const ISettingRegistry = token('ISettingRegistry');
export const IStateDB = token('IStateDB');
export const IStatusBar = token('IStatusBar');
export const IThemeManager = token('IThemeManager');
export const ITranslator = token('ITranslator');

/** Messages as they are written, with their values in place of %1, %2, … */
const trans = {
  __: (text: string, ...values: unknown[]): string =>
    values.reduce<string>((filled, value, place) => filled.replace(`%${place + 1}`, String(value)), text),
  _n: (one: string, many: string, count: number, ...values: unknown[]): string =>
    trans.__(count === 1 ? one : many, count, ...values)
};
export const nullTranslator = { load: () => trans };

export abstract class ReactWidget extends Widget {
  protected abstract render(): React.JSX.Element;
  static create(): Widget {
    return new Widget();
  }
}
export class MainAreaWidget extends Widget {}
export const Clipboard = { copyToSystem: (): void => undefined };

export class WidgetTracker {
  readonly currentWidget = null;
  find(): undefined {
    return undefined;
  }
  add(): Promise<void> {
    return Promise.resolve();
  }
  save(): Promise<void> {
    return Promise.resolve();
  }
}

export function UseSignal(props: { children: () => React.JSX.Element }): React.JSX.Element {
  return props.children();
}

export class LabIcon {
  constructor(readonly options: { name: string; svgstr: string }) {}
  readonly react = (): null => null;
}
const icon = (name: string): LabIcon => new LabIcon({ name, svgstr: '' });
export const caretLeftIcon = icon('caret-left');
export const caretRightIcon = icon('caret-right');
export const closeIcon = icon('close');
export const downloadIcon = icon('download');
export const notebookIcon = icon('notebook');
export const pauseIcon = icon('pause');
export const runIcon = icon('run');

/** What was notified: the tests read it, and empty it. */
export const notified: { message: string; type: string; actions: readonly unknown[] }[] = [];
export const Notification = {
  emit: (message: string, type: string, options: { actions?: readonly unknown[] }): string =>
    String(notified.push({ message, type, actions: options.actions ?? [] })),
  info: (message: string): string => String(notified.push({ message, type: 'info', actions: [] })),
  error: (message: string): string => String(notified.push({ message, type: 'error', actions: [] })),
  dismiss: (): void => undefined
};

export const PageConfig = { getOption: (): string => '' };
export const PathExt = { dirname: (path: string): string => path.split('/').slice(0, -1).join('/') };
export const URLExt = {
  join: (...parts: string[]): string => parts.join('/'),
  objectToQueryString: (query: Record<string, string>): string => `?${new URLSearchParams(query).toString()}`
};
export const ServerConnection = {
  makeSettings: () => ({ baseUrl: '', wsUrl: '' }),
  makeRequest: (): Promise<Response> => Promise.reject(new Error('There is no server in this test.'))
};
