import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import type { IVettingGrid } from '../../src/api';
import { ENGLISH } from '../../src/views/translation';
import { Report } from '../../src/views/vetting/report';
import { summarizeVetting } from '../../src/views/vetting/summary';
import vetting from '../../src/widgets/vetting';
import { FakeWidgetModel } from './fake-widget-model';

const SECOND_NS = 1e9;
const report: IVettingGrid = {
  protocol: 'quick',
  started_ns: 0,
  ended_ns: 9 * SECOND_NS,
  complete: true,
  nodes: 2,
  vetted: 1,
  done: 2,
  checks: ['dns'],
  rows: [
    {
      node: 'nid2',
      verdict: 'fail',
      vetted: false,
      running: '',
      cells: [{ verdict: 'fail', reason: '<b>no answer' }]
    }
  ],
  more: { pass: 1 },
  faulty_components: [],
  more_faulty_components: 0,
  exclude: 'nid2',
  outcome: '',
  notes: ['a note']
};

describe('ENGLISH', () => {
  it('fills in values and leaves what has none', () => {
    expect(ENGLISH.__('%2 of %1, 5 %%, %3', 'a', 'b')).toBe('b of a, 5 %, %3');
    expect(ENGLISH._n('%1 node', '%1 nodes', 1)).toBe('1 node');
    expect(ENGLISH._n('%1 node', '%1 nodes', 0)).toBe('0 nodes');
  });
});

describe('summarizeVetting', () => {
  it('tells a running, a passed, a failed and an interrupted vetting apart', () => {
    const of = (changes: Partial<IVettingGrid>, running = false): string => {
      const { state, shape, text } = summarizeVetting({ ...report, ...changes }, running, ENGLISH);
      return `${state} ${shape} ${text}`;
    };
    expect(of({}, true)).toBe('running ◐ 2 of 2 nodes done (quick)');
    expect(of({ vetted: 2 })).toMatch(/^good ✓ 2 of 2 nodes vetted .+ \(quick, 9 s\)$/);
    expect(of({})).toMatch(/^bad ✗ 1 of 2 nodes vetted .+ \(quick, 9 s\)$/);
    expect(of({ nodes: 1, complete: false })).toMatch(
      /^bad ✗ 1 of 1 node vetted .+ \(quick, 9 s, not complete\)$/
    );
  });
});

describe('the report', () => {
  it('offers more rows only where the page can fetch them', () => {
    const still = renderToStaticMarkup(<Report grid={report} trans={ENGLISH} />);
    expect(still).toContain('✓ 1 more: pass');
    expect(still).not.toContain('Show all nodes');
    const rows = { all: false, showAll: jest.fn() };
    expect(renderToStaticMarkup(<Report grid={report} rows={rows} trans={ENGLISH} />)).toContain(
      'Show all nodes'
    );
  });
});

describe('the widget', () => {
  it('shows the message, then the report, and stops listening', async () => {
    const model = new FakeWidgetModel({ grid: {}, message: 'Starting the vetting…' });
    const el = document.createElement('div');
    const leave = await model.rendered(() => vetting.render({ model, el }));
    expect(el.textContent).toBe('Starting the vetting…');
    await model.rendered(() => {
      model.set('grid', report);
    });
    expect(el.querySelector('[role=status]')?.textContent).toContain('✗ Vetting: 1 of 2 nodes vetted');
    expect(el.querySelector('td')?.getAttribute('aria-label')).toBe('nid2, dns: fail. <b>no answer');
    expect(el.querySelector('b')).toBeNull();
    await model.rendered(leave);
    expect(el.childElementCount).toBe(0);
    expect(model.listeners).toBe(0);
  });
});
