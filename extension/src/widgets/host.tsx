import * as React from 'react';
import { createRoot } from 'react-dom/client';

/** What anywidget passes to a view: the state that the kernel sends, and messages. */
export interface IWidgetModel {
  get(name: string): unknown;
  on(event: string, listener: (message: never, buffers?: never) => void): void;
  off(event: string, listener: (message: never, buffers?: never) => void): void;
  send(message: unknown): void;
}

/** The module of a widget, as anywidget calls it. */
export interface IWidgetModule {
  render(page: { model: IWidgetModel; el: HTMLElement }): () => void;
}

/** Send the kernel a message; without a kernel, the view stays as it was saved. */
export function notify(model: IWidgetModel, message: unknown): void {
  try {
    model.send(message);
  } catch {
    // There is no kernel.
  }
}

/**
 * Host a view in a notebook's cell, without JupyterLab.
 *
 * @param names The parts of the kernel's state that the view shows.
 * @param View Rendered with these parts, again after each change.
 */
export function hostView<T extends object>(
  names: readonly (keyof T & string)[],
  View: React.ComponentType<T & { readonly model: IWidgetModel }>
): IWidgetModule {
  return {
    render: ({ model, el }) => {
      const root = createRoot(el);
      const draw = (): void => {
        const state = Object.fromEntries(names.map(name => [name, model.get(name)])) as T;
        root.render(<View {...state} model={model} />);
      };
      const events = names.map(name => `change:${name}`);
      for (const event of events) {
        model.on(event, draw);
      }
      draw();
      return () => {
        for (const event of events) {
          model.off(event, draw);
        }
        root.unmount();
      };
    }
  };
}

/** Model of a view that keeps more than the kernel's state. */
export interface IWidgetViewModel {
  dispose(): void;
}

/**
 * Host a view with a model of its own in a notebook's cell, without JupyterLab.
 *
 * @param create Returns the model of a view; `changed` draws the view again.
 * @param View Rendered with this model.
 */
export function hostModel<T extends IWidgetViewModel>(
  create: (model: IWidgetModel, changed: () => void) => T,
  View: React.ComponentType<{ readonly model: T }>
): IWidgetModule {
  return {
    render: ({ model, el }) => {
      const root = createRoot(el);
      const draw = (): void => {
        root.render(<View model={own} />);
      };
      const own = create(model, draw);
      draw();
      return () => {
        own.dispose();
        root.unmount();
      };
    }
  };
}
