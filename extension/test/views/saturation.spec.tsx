import { renderToStaticMarkup } from 'react-dom/server';
import * as React from 'react';

import type { IAdvice, IDevice, IFigure, IGpuProcess, IScore } from '../../src/api';
import { ENGLISH } from '../../src/views/translation';
import { AdviceList } from '../../src/views/saturation/advice';
import { GpuHolders } from '../../src/views/saturation/holders';
import { Score } from '../../src/views/saturation/score';
import { StateLine } from '../../src/views/saturation/state';
import saturation from '../../src/widgets/saturation';
import { FakeWidgetModel } from './fake-widget-model';

const OFFER = Symbol.for('gipfel.plotly');
const page = globalThis as unknown as Record<symbol, unknown>;
const START_MS = 1_800_000_000_000;

const figure: IFigure = {
  data: [{ uid: 'GPU-0/SM_ACTIVE', x: [START_MS, START_MS + 1000], y: [10, 20], line: { color: '#0072b2' } }],
  layout: { xaxis: { type: 'date', hoverformat: '%H:%M:%S UTC' }, meta: { window_s: 60 } }
};

const score: IScore = {
  score: 42.3,
  bottleneck: 'memory',
  range: [40, 50],
  binding: { memory: 0.8 },
  losses: { input: 57.7 },
  integer_points: { score: 42, input: 58 },
  advice: [
    {
      rule: 'workers',
      loss: 'input',
      sentence: 'The GPUs wait for input.',
      action: 'Use more workers.',
      gain: 20,
      gain_text: 'about 20 points',
      knob: { name: 'num_workers', link: 'https://pytorch.org/docs/' },
      evidence: [{ device: 'GPU-0', metrics: ['SM_ACTIVE'], start_ns: 0, end_ns: 1e9 }]
    }
  ],
  confidence: 0.9,
  gpus: [],
  spread: null,
  startup_s: 0,
  interval_s: 1,
  simulated: false,
  notes: []
};

const status = {
  state: 'live',
  source: 'synthetic:training',
  simulated: true,
  gpus: 1,
  interval: 1,
  last_ns: null,
  message: ''
};

/** Records what is drawn. */
class FakePlotly {
  readonly drawn: { data: { x: string[] }[]; layout: Record<string, unknown> }[] = [];

  react(node: HTMLElement, data: { x: string[] }[], layout: Record<string, unknown>): Promise<void> {
    Object.assign(node, { on: () => undefined });
    this.drawn.push({ data: data.map(trace => ({ ...trace, x: [...trace.x] })), layout });
    return Promise.resolve();
  }

  purge(): void {
    this.purged += 1;
  }

  purged = 0;
}

describe('the saturation in a cell', () => {
  const plotly = new FakePlotly();

  beforeAll(() => {
    page[OFFER] = () => Promise.resolve(plotly);
    // jsdom leaves these out.
    Object.assign(performance, { measure: () => undefined, clearMeasures: () => undefined });
    Object.assign(globalThis, {
      ResizeObserver: class {
        observe = (): void => undefined;
        disconnect = (): void => undefined;
      },
      structuredClone: (value: unknown): unknown => JSON.parse(JSON.stringify(value))
    });
  });

  afterAll(() => {
    // eslint-disable-next-line @typescript-eslint/no-dynamic-delete
    delete page[OFFER];
  });

  it("draws the kernel's figure, score and advice, takes in new samples, and leaves nothing behind", async () => {
    const kernel = new FakeWidgetModel({ figure, status, score: {}, plots: {}, dark_colours: {} });
    const el = document.body.appendChild(document.createElement('div'));
    const leave = await kernel.rendered(() => saturation.render({ model: kernel, el }));
    await kernel.renderedUntil(() => plotly.drawn.length > 0);
    expect(kernel.sent).toEqual([{ type: 'figure' }]);
    expect(el.querySelector('.jp-Gipfel-status')?.textContent).toContain('simulated');
    expect(el.querySelector('.jp-Gipfel-status')?.textContent).toContain('live every 1 s');
    expect(el.querySelector('.jp-Gipfel-score')).toBeNull();

    await kernel.rendered(() => {
      kernel.set('score', score);
      kernel.set('plots', { score: figure });
    });
    expect(el.querySelector('.jp-Gipfel-lost')?.textContent).toContain('58 points lost: ');
    expect(el.querySelector('.jp-Gipfel-advice')?.textContent).toContain('Use more workers.');

    const traces = { 'GPU-0/SM_ACTIVE': { x: [START_MS + 2000], y: [30] } };
    await kernel.rendered(() => {
      kernel.emit('msg:custom', { type: 'samples', traces });
    });
    await kernel.renderedUntil(() => plotly.drawn.at(-1)?.data[0]?.x.length === 3);

    await kernel.rendered(leave);
    expect(kernel.listeners).toBe(0);
    expect(plotly.purged).toBe(1);
    expect(el.innerHTML).toBe('');
    // The draws wait for their share of the main thread.
  }, 20_000);
});

describe('the views of saturation', () => {
  it('offer the evidence of an advice only where there is a plot that can show it', () => {
    const of = (onShow?: () => void): string =>
      renderToStaticMarkup(<AdviceList advice={score.advice} since={[]} onShow={onShow} trans={ENGLISH} />);
    expect(of(() => undefined)).toContain('<button');
    expect(of()).not.toContain('<button');
  });

  it('have one item for each loss, with other remedies below it, and hide no loss of five points', () => {
    const of = (rule: string, points: number, alternative = false): IAdvice => ({
      ...(score.advice as readonly [IAdvice])[0],
      rule,
      points,
      alternative,
      sentence: `Sentence of ${rule}.`,
      action: `Do ${rule}.`
    });
    const advice = [of('a', 20), of('b', 20, true), of('c', 9), of('d', 8), of('e', 5), of('f', 3)];
    const text = renderToStaticMarkup(<AdviceList advice={advice} since={[]} trans={ENGLISH} />);
    expect(text.match(/<li>/g)).toHaveLength(4);
    expect(text).toContain('Sentence of e.');
    expect(text).not.toContain('Sentence of b.');
    expect(text).toContain('Or: Do b.');
    expect(text).toContain('1 more');
  });

  it('list who holds GPUs, open where another user or process shares one', () => {
    const gpus = [0, 1].map(index => ({ uuid: `GPU-${index}`, index, node: 'n1' })) as unknown as IDevice[];
    const of = (...processes: IGpuProcess[]): string =>
      renderToStaticMarkup(<GpuHolders processes={processes} gpus={gpus} trans={ENGLISH} />);
    const own = { pid: 7, gpu_uuid: 'GPU-0', node: 'n1', name: 'the kernel of train.ipynb', user: '' };
    expect(of()).toBe('');
    expect(of(own)).toContain('GPU 0: the kernel of train.ipynb (pid 7)');
    expect(of(own)).not.toContain('open=""');
    const other = { ...own, pid: 8, gpu_uuid: 'GPU-1', name: 'python3', user: 'ada' };
    expect(of(own, other)).toContain('GPU 1: python3 of the user ada (pid 8)');
    expect(of(own, other)).toContain('open=""');
    expect(of(own, { ...own, pid: 9, name: '' })).toContain('open=""');
    expect(of(own, { ...own, gpu_uuid: 'GPU-1' })).toContain('1 process holds a GPU');
    expect(of({ ...own, name: '' })).toContain('a process that is not visible here');
  });

  it('begin with the largest loss and its remedy', () => {
    const html = (given: Partial<IScore>): string =>
      renderToStaticMarkup(<Score score={{ ...score, ...given }} trans={ENGLISH} />).replace(/<[^>]*>/g, ' ');
    expect(html({})).toMatch(/42\s+of 100 · fair/);
    expect(html({})).toContain('Most is lost to input: 58 points.  Use more workers.');
    expect(html({ advice: [] })).toContain('58 points.  No safe remedy is known.');
    expect(html({ energy: '2 Wh of 1 GPU' })).toContain('Energy in this time: 2 Wh of 1 GPU');
    expect(html({})).not.toContain('Energy');
    const unknown = html({ integer_points: { score: 50, unexplained: 30, input: 20 } });
    expect(unknown).toContain('for a reason that no recorded metric shows: 30 points.  Profile a few steps');
    const busy = html({ integer_points: { score: 97, input: 3 } });
    expect(busy).toMatch(/97\s+of 100 · very good/);
    expect(busy).not.toContain('Most is lost');
  });

  it('say in the first seconds of a live view what comes next', () => {
    const html = (seconds: number, live: number): string =>
      renderToStaticMarkup(
        <Score
          score={{
            ...score,
            advice: [],
            gpus: [{ uuid: 'a', score: 42, utilization: 1 }],
            first_ns: 1e18,
            last_ns: 1e18 + 1e9 * seconds
          }}
          live={live}
          trans={ENGLISH}
        />
      ).replace(/<[^>]*>/g, ' ');
    expect(html(2, 4)).toContain('Measuring 4 GPUs.');
    expect(html(2, 4)).not.toContain('of 100 ·');
    expect(html(20, 4)).toContain('58 points.  Advice follows when this has lasted a minute.');
    expect(html(90, 4)).toContain('No safe remedy is known.');
    // A recording of two seconds is all that there will be.
    expect(html(2, 0)).toMatch(/42\s+of 100 · fair/);
  });

  it('do not call a silent kernel live', () => {
    const text = renderToStaticMarkup(<StateLine state="silent" simulated={false} trans={ENGLISH} />);
    expect(text).toContain('disconnected');
    expect(text).not.toContain('simulated');
  });
});
