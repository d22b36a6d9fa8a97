import { nullTranslator } from '@jupyterlab/translation';
import { act } from 'react';
import * as React from 'react';
import { createRoot, type Root } from 'react-dom/client';

import { fieldMs, fieldText, spanOf, TimeRange } from '../../src/common/time-range';
import type { ITimeSpan } from '../../src/views/figures/plot';

const TRANS = nullTranslator.load('gipfel');
const SPAN = { sinceMs: 1_800_000_000_000, untilMs: 1_800_000_060_000 };

describe('TimeRange', () => {
  let node: HTMLElement;
  let root: Root;
  let chosen: (number | ITimeSpan | null)[];

  function show(span: ITimeSpan | null, lastS: number | null = null): void {
    act(() => {
      root.render(
        <TimeRange
          lastS={lastS}
          span={span}
          drawn={() => SPAN}
          back="Whole run"
          trans={TRANS}
          onLast={seconds => chosen.push(seconds)}
          onSpan={other => chosen.push(other)}
        />
      );
    });
  }

  function choose(value: string): void {
    const select = node.querySelector('select');
    act(() => {
      if (select) {
        select.value = value;
        select.dispatchEvent(new Event('change', { bubbles: true }));
      }
    });
  }

  /** Type into a field: React takes no notice of what is assigned to `value`. */
  function type(field: HTMLInputElement | undefined, text: string): void {
    act(() => {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')?.set?.call(field, text);
      field?.dispatchEvent(new Event('input', { bubbles: true }));
    });
  }

  beforeAll(() => {
    Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });
  });

  beforeEach(() => {
    node = document.createElement('div');
    document.body.append(node);
    root = createRoot(node);
    chosen = [];
  });

  afterEach(() => {
    act(() => {
      root.unmount();
    });
    node.remove();
  });

  it('offers the last 15 minutes, the last hour, and the whole run', () => {
    show(null, 900);
    expect(node.querySelector('select')?.value).toBe('900');
    choose('3600');
    choose('');
    expect(chosen).toEqual([3600, null]);
  });

  it('begins two times with what is drawn, and shows others that are typed', () => {
    show(null);
    choose('times');
    expect(chosen).toEqual([SPAN]);
    show(SPAN);
    const [from] = node.querySelectorAll('input');
    expect(fieldMs(from?.value ?? '')).toBe(SPAN.sinceMs);
    type(from, fieldText(SPAN.sinceMs - 30_000));
    act(() => {
      node.querySelector('form')?.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }));
    });
    expect(chosen[1]).toEqual({ ...SPAN, sinceMs: SPAN.sinceMs - 30_000 });
    type(from, fieldText(SPAN.untilMs + 1000));
    expect(node.querySelector('[role=alert]')?.textContent).toContain('before');
    expect(node.querySelector<HTMLButtonElement>('[type=submit]')?.disabled).toBe(true);
  });
});

describe('times of fields', () => {
  it.each([1_790_000_000_000, 1_792_893_600_000, 1_774_749_600_000])(
    'are read as they are written: %s',
    ms => {
      expect(fieldMs(fieldText(ms))).toBe(ms);
    }
  );

  it('are not read from what is not a time', () => {
    expect(fieldMs('')).toBeNaN();
    expect(spanOf({ data: [], layout: { xaxis: { range: [1, 2] } } })).toBeNull();
  });
});
