import * as React from 'react';

import type { IWidgetModel } from '../../src/widgets/host';

// Its types are those of React 18.2, which has it elsewhere.
const { act } = React as unknown as { act: (task: () => Promise<void>) => Promise<void> };
Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });

/** The part of a kernel in a widget's page: its state, and what the page has sent. */
export class FakeWidgetModel implements IWidgetModel {
  constructor(private readonly _state: Record<string, unknown>) {}

  readonly sent: unknown[] = [];

  /** How many listeners there are. */
  get listeners(): number {
    return this._listeners.length;
  }

  get(name: string): unknown {
    return this._state[name];
  }

  on(event: string, listener: (message: never) => void): void {
    this._listeners = [...this._listeners, { event, listener }];
  }

  off(event: string, listener: (message: never) => void): void {
    this._listeners = this._listeners.filter(each => each.event !== event || each.listener !== listener);
  }

  send(message: unknown): void {
    this.sent.push(message);
  }

  /** Change the state, as the kernel does. */
  set(name: string, value: unknown): void {
    this._state[name] = value;
    this.emit(`change:${name}`, undefined);
  }

  emit(event: string, message: unknown): void {
    for (const each of this._listeners.filter(one => one.event === event)) {
      each.listener(message as never);
    }
  }

  /** Run a task, and draw what it has changed. */
  async rendered<T>(task: () => T | Promise<T>): Promise<T> {
    let found: T | undefined;
    await act(async () => {
      found = await task();
    });
    return found as T;
  }

  /** Draw until a condition is true, for 14 s at most. */
  async renderedUntil(done: () => boolean): Promise<void> {
    for (let waited = 0; !done() && waited < 700; waited += 1) {
      await this.rendered(() => new Promise<void>(resolve => setTimeout(resolve, 20)));
    }
    expect(done()).toBe(true);
  }

  private _listeners: readonly { event: string; listener: (message: never) => void }[] = [];
}
