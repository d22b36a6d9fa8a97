import { attachKeys } from '../../src/views/figures/aids';
import type { ITimeSpan } from '../../src/views/figures/plot';

/** Return a figure of 100 seconds, and the spans that its keys zoomed to. */
function figure(lengthMs = 100_000): {
  node: HTMLElement;
  spans: (ITimeSpan | null)[];
  press: (key: string, more?: KeyboardEventInit) => boolean;
  detach: () => void;
} {
  const node = document.createElement('div');
  Object.defineProperty(node, 'clientWidth', { value: 500 });
  const range = [0, lengthMs].map(time => new Date(time).toISOString().slice(0, -1));
  Object.assign(node, { layout: { margin: { l: 50, r: 50 }, xaxis: { range, type: 'date' } } });
  const spans: (ITimeSpan | null)[] = [];
  const detach = attachKeys(
    node,
    () => 0,
    span => spans.push(span)
  );
  const press = (key: string, more: KeyboardEventInit = {}): boolean =>
    node.dispatchEvent(new KeyboardEvent('keydown', { key, cancelable: true, ...more }));
  return { node, spans, press, detach };
}

describe('keys of a figure', () => {
  it.each([
    ['+', 25_000, 75_000],
    ['-', -50_000, 150_000],
    ['ArrowLeft', -25_000, 75_000],
    ['ArrowRight', 25_000, 125_000]
  ])('%s shows another time span', (key, sinceMs, untilMs) => {
    const { spans, press } = figure();
    press(key);
    expect(spans).toEqual([{ sinceMs, untilMs }]);
  });

  it.each(['0', 'Escape'])('%s shows the whole', key => {
    const { spans, press } = figure();
    press(key);
    expect(spans).toEqual([null]);
  });

  it('leaves other keys, and those with a modifier, to the page', () => {
    const { spans, press } = figure();
    expect([press('a'), press('+', { ctrlKey: true }), press('Tab')]).toEqual([true, true, true]);
    expect(spans).toEqual([]);
  });

  it('zooms in no further than a few samples', () => {
    const { spans, press } = figure(8_000);
    press('+');
    expect(spans).toEqual([]);
  });

  it('is reached by Tab, and hears nothing once detached', () => {
    const { node, spans, press, detach } = figure();
    expect(node.tabIndex).toBe(0);
    detach();
    press('+');
    expect(spans).toEqual([]);
  });
});
