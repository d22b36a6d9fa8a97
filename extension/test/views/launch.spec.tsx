import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import type { ILaunch } from '../../src/api';
import { detailsOf, launchOf, type ILaunchDocument } from '../../src/views/launch/document';
import { RankFiles } from '../../src/views/launch/files';
import { Launch } from '../../src/views/launch/launch';
import { NO_LINES, appendLines, filterLines, type LogLine } from '../../src/views/launch/log-lines';
import { curvePoints, durationText, progressText, rankText } from '../../src/views/launch/summary';
import { ENGLISH } from '../../src/views/translation';
import launchWidget from '../../src/widgets/launch';
import { FakeWidgetModel } from './fake-widget-model';

const NS = 1e6;
const running: ILaunchDocument = {
  id: 'run/7',
  number: 7,
  name: 'train',
  title: 'train.py',
  status: 'running',
  phase: 'running',
  message: '',
  ranks: 8,
  node_count: 2,
  started_ns: 0,
  progress: { values: {}, step: 1500, total: 3000, time_ns: null, fraction: 0.5 },
  training_curve: {
    rate: 2048.4,
    rate_name: 'tokens_per_s',
    steps_per_s: 2,
    losses: [
      [1, 4],
      [2, 2.123456]
    ]
  },
  folder: '/runs/run/launches/7',
  command: 'torchrun <b>',
  preflight: [{ check: 'files', verdict: 'fail', message: 'train.py is missing.', fix: 'Create it.' }]
};
const line = (rank: number, text: string, error = false): LogLine => [rank, text, null, error];

describe('the texts of a launch', () => {
  it('tell progress, rate, loss and score, as far as they are known', () => {
    const launch = launchOf(running);
    expect(progressText(launch, undefined, ENGLISH)).toBe('50 % · step 1,500/3,000 · 2,048 tokens/s');
    const details = detailsOf(running);
    expect(progressText({ ...launch, score: 61.6, restarts: 1 }, details, ENGLISH)).toBe(
      '50 % · step 1,500/3,000 · 2,048 tokens/s · loss 2.123 · score 62 of 100 · 1 restart'
    );
    expect(progressText(launchOf({}), detailsOf({}), ENGLISH)).toBe('');
    const pace = (steps_per_s: number): ILaunch => ({
      ...launchOf({}),
      training_curve: { losses: [], rate: null, rate_name: '', steps_per_s }
    });
    expect(progressText(pace(648.3), undefined, ENGLISH)).toBe('648 steps/s');
    expect(progressText(pace(1), undefined, ENGLISH)).toBe('1 step/s');
    expect(progressText(pace(0.01234), undefined, ENGLISH)).toBe('0.0123 steps/s');
  });

  it('tell ranks per node only where there are several nodes', () => {
    expect(rankText(launchOf(running), ENGLISH)).toBe('2 × 4 ranks');
    expect(rankText(launchOf({ ranks: 1, node_count: 1 }), ENGLISH)).toBe('1 rank');
  });

  it('draw a loss from the left edge to the right, and one that stays the same', () => {
    expect(curvePoints([3, 1, 2])).toBe('0.0,2.0 60.0,22.0 120.0,12.0');
    expect(curvePoints([5, 5])).toBe('0.0,22.0 120.0,22.0');
    expect([3_725, 65, 7.9, -1].map(durationText)).toEqual(['1 h 2 min', '1 min 5 s', '7 s', '0 s']);
  });
});

describe('the end of a log', () => {
  it('keeps two thousand lines, whose numbers stay the same', () => {
    const first = appendLines(
      NO_LINES,
      Array.from({ length: 1_999 }, (_, index) => line(index % 2, String(index)))
    );
    const log = appendLines(first, [line(0, 'a'), line(1, 'b', true), line(0, 'c')]);
    expect([log.dropped, log.lines.length]).toEqual([2, 2_000]);
    expect(filterLines(log, null, true)).toEqual([{ number: 2_000, line: line(1, 'b', true) }]);
    expect(filterLines(log, 0, false).at(0)).toEqual({ number: 2, line: line(0, '2') });
    expect(filterLines(log, 0, true)).toEqual([]);
  });
});

describe('the view of a launch', () => {
  const html = (props: Partial<React.ComponentProps<typeof Launch>>): string =>
    renderToStaticMarkup(
      <Launch
        launch={launchOf(running)}
        controls={{ busy: false }}
        fileUrl={undefined}
        trans={ENGLISH}
        {...props}
      />
    );

  it('shows phases, checks and command only to who has them', () => {
    expect(html({})).not.toMatch(/Phases|the exact command|Pre-flight/);
    const shown = html({ details: { ...detailsOf(running), vetting: 'quick' } });
    expect(shown).toMatch(/aria-current="step">running<.*<pre>torchrun &lt;b&gt;</);
    expect(shown).toContain('>vetting</li>');
    expect(shown).toContain('train.py is missing. Create it.');
    expect(shown).toContain('aria-label="loss from 4 to 2.123"');
    expect(html({ details: detailsOf(running) })).not.toContain('>vetting</li>');
  });

  it('offers the actions that the page has, for the phase of the launch', () => {
    const controls = { busy: true, stop: jest.fn(), rerun: jest.fn(), openNotebook: jest.fn() };
    expect(html({ controls })).toMatch(/aria-label="Stop: #7 train" disabled=""/);
    const ended = { ...launchOf(running), phase: 'ended', notebook: true, ended_ns: 5 * NS };
    const shown = html({ controls, launch: ended });
    expect(shown).toMatch(/Open notebook: #7 train.*Run again: #7 train/);
    expect(shown).not.toContain('Stop: ');
    expect(html({})).not.toContain('<button');
  });

  it('links the files of ranks where the page can reach them, else says where they are', () => {
    const launch = { ...launchOf(running), traces: [0], dumps: [1] };
    const files = (fileUrl?: (kind: string, id: string, rank: number) => string): string =>
      renderToStaticMarkup(<RankFiles launch={launch} folder="/f" fileUrl={fileUrl} trans={ENGLISH} />);
    expect(files((kind, id, rank) => `/${kind}/${id}/${rank}`)).toContain('<a href="/trace/run/7/0"');
    expect(files()).toContain('rank 1 (/f/flight_recorder)');
    expect(files()).not.toContain('<a href="/');
  });
});

describe('the widget of a launch', () => {
  async function shown(
    document: ILaunchDocument
  ): Promise<{ model: FakeWidgetModel; el: HTMLElement; leave: () => void }> {
    const model = new FakeWidgetModel({ document });
    const el = window.document.createElement('div');
    // React listens at the root of the page.
    window.document.body.append(el);
    const leave = await model.rendered(() => launchWidget.render({ model, el }));
    return { model, el, leave };
  }
  const logOf = (el: HTMLElement): string => el.querySelector('[role=log]')?.textContent ?? 'no log';
  const stopOf = (el: HTMLElement): HTMLButtonElement | null => el.querySelector('footer button');

  it('shows nothing before a check, then its outcome, and no log before the start', async () => {
    const { model, el, leave } = await shown({ phase: '', status: '', message: '' });
    expect(el.textContent).toBe('');
    await model.rendered(() => {
      model.set('document', { phase: 'preflight', status: 'checked', message: 'nothing was started' });
    });
    expect(el.querySelector('article')?.dataset.status).toBe('checked');
    expect(el.querySelectorAll('[data-reached=true]')).toHaveLength(1);
    expect(el.querySelector('[role=log], footer button')).toBeNull();
    expect(model.sent).toEqual([]);
    await model.rendered(leave);
    expect([el.childElementCount, model.listeners]).toEqual([0, 0]);
  });

  it('requests earlier lines, adds new ones, and those of another rank anew', async () => {
    const { model, el } = await shown(running);
    const logs = (first: boolean, rank: number | null, lines: LogLine[]): Promise<void> =>
      model.rendered(() => {
        model.emit('msg:custom', { type: 'logs', first, rank, lines });
      });
    expect(model.sent).toEqual([{ type: 'logs', rank: null }]);
    await logs(true, null, [line(0, 'earlier'), line(1, '<b>')]);
    await logs(false, null, [line(1, 'new')]);
    expect(logOf(el)).toBe('r0earlierr1<b>r1new');
    const choice = el.querySelector('select');
    expect(choice?.options).toHaveLength(9);
    await model.rendered(() => {
      if (choice) {
        choice.value = '1';
        choice.dispatchEvent(new Event('change', { bubbles: true }));
      }
    });
    expect(model.sent.at(-1)).toEqual({ type: 'logs', rank: 1 });
    expect(logOf(el)).toBe('r1<b>r1new');
    // Late lines for the earlier choice.
    await logs(true, null, [line(0, 'late')]);
    await logs(true, 1, [line(1, 'all of rank 1')]);
    await logs(false, null, [line(0, 'not shown'), line(1, 'newer')]);
    expect(logOf(el)).toBe('r1all of rank 1r1newer');
  });

  it('stops a launch once, and says why that failed', async () => {
    const { model, el } = await shown(running);
    await model.rendered(() => stopOf(el)?.click());
    expect(model.sent.at(-1)).toEqual({ type: 'stop' });
    expect([stopOf(el)?.disabled, stopOf(el)?.textContent]).toEqual([true, 'Stopping …']);
    await model.rendered(() => {
      model.emit('msg:custom', { type: 'error', text: 'The job is gone.' });
    });
    expect(stopOf(el)?.disabled).toBe(false);
    expect(el.querySelector('[role=alert]')?.textContent).toBe('✗ The job is gone.');
    await model.rendered(() => {
      model.set('document', { ...running, id: 'run/8', number: 8 });
    });
    expect(el.querySelector('[role=alert]')).toBeNull();
    expect(model.sent.at(-1)).toEqual({ type: 'logs', rank: null });
  });

  it('stays as it was saved where there is no kernel', async () => {
    const model = new FakeWidgetModel({ document: running });
    model.send = () => {
      throw new Error('no kernel');
    };
    const el = document.createElement('div');
    await model.rendered(() => launchWidget.render({ model, el }));
    expect(el.querySelector('article')?.dataset.launch).toBe('run/7');
  });
});
