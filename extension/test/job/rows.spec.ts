import type { IFigure, IJobDocument, IJobRank, IJobVerdict, IJobVerdicts } from '../../src/api';
import { nullTranslator } from '@jupyterlab/translation';

import { depthOf } from '../../src/job/depth';
import { chooseEvent } from '../../src/job/events';
import { eventRows } from '../../src/job/event-rows';
import { decodedHeat, heatRows } from '../../src/job/heat';
import { rankRows, sortedRows } from '../../src/job/rank-rows';
import { JobSelection } from '../../src/job/selection';

const rank = (number: number, more: Partial<IJobRank> = {}): IJobRank => ({
  rank: number,
  state: 'seen',
  role: { pp: number % 2 },
  node: `nid${number}`,
  switch: '',
  nic: '',
  numa: null,
  pid: null,
  process: '',
  gpus: [],
  log: false,
  failure: '',
  ...more
});
const verdict = (more: Partial<IJobVerdict>): IJobVerdict => ({
  kind: 'slow_rank',
  title: 'Rank 2 is slower',
  evidence: '',
  severity: 1,
  ranks: [2],
  stage: null,
  unit: '',
  since_ms: 5_000,
  confidence: 1,
  source: 'steps',
  ...more
});
const JOB = {
  ranks: [rank(0), rank(1, { state: 'missing' }), rank(2, { state: 'failed' }), rank(10)],
  steps: { 0: 7, 10: 9 },
  events: [
    { time_ms: 9_000, node: 'nid1', kind: 'xid', device: 'GPU-1', message: 'XID 79' },
    { time_ms: 1_000, node: 'nid1', kind: 'recorder_started', device: '', message: 'Recording' }
  ]
} as unknown as IJobDocument;
const VERDICTS: IJobVerdicts = { version: '', verdicts: [verdict({})], notes: [] };

describe('the rows of ranks', () => {
  it('are sorted by any column, equal ones by rank, unknown ones last', () => {
    const rows = rankRows(JOB, VERDICTS);
    const order = (column: 'rank' | 'state' | 'step' | 'node' | 'verdict', down = false): number[] =>
      sortedRows(rows, column, down).map(each => each.rank.rank);
    expect(order('rank', true)).toEqual([10, 2, 1, 0]);
    expect(order('state')).toEqual([2, 1, 0, 10]);
    expect(order('step', true)).toEqual([10, 0, 1, 2]);
    expect(order('node')).toEqual([0, 1, 2, 10]);
    expect(order('verdict')[0]).toBe(2);
  });
});

describe('the rows of events', () => {
  it('hold verdicts and events, the newest first, and a verdict on the whole run before them', () => {
    const rows = eventRows(JOB, { ...VERDICTS, verdicts: [verdict({}), verdict({ since_ms: null })] });
    expect(rows.map(each => each.timeMs)).toEqual([null, 9_000, 5_000, 1_000]);
    expect(rows.map(each => each.severity)).toEqual([1, 2, 1, 0]);
  });

  it.each([
    [0, 'gpu=GPU-1', 9_000],
    [1, 'rank=2', 5_000],
    [2, 'node=nid1', 1_000]
  ])('select what they name, and the time around it', (place, expression, timeMs) => {
    const selection = new JobSelection();
    const row = eventRows(JOB, VERDICTS)[place];
    if (row) {
      chooseEvent(selection, row);
    }
    expect(selection.pickExpression).toBe(expression);
    expect(selection.span).toEqual({ sinceMs: timeMs - 60_000, untilMs: timeMs + 60_000 });
  });

  it('select a stage by its role', () => {
    const selection = new JobSelection();
    const staged = verdict({ kind: 'uneven_stage', ranks: [], stage: 3 });
    const [row] = eventRows(null, { ...VERDICTS, verdicts: [staged] });
    if (row) {
      chooseEvent(selection, row);
    }
    expect(selection.expression).toBe('pp=3');
  });
});

describe('the heat map', () => {
  it('has its values from bytes, with gaps, and labels that are no markup', () => {
    const meta = {
      bytes: btoa(String.fromCharCode(0, 127, 254, 255)),
      shape: [2, 2],
      low: 0,
      high: 100,
      labels: ['<b>0', '1'],
      ranks: [[0], [1]],
      nodes: ['n', 'n'],
      uuids: ['a', 'b'],
      rows_per_bin: 1
    };
    const figure = { data: [{ type: 'heatmap', z: [] }], layout: { meta } } as unknown as IFigure;
    const drawn = decodedHeat(figure);
    const [trace] = drawn.data as unknown as [{ z: Float32Array[]; text: string[][] }];
    expect([...(trace.z[0] ?? [])].map(Math.round)).toEqual([0, 50]);
    expect([...(trace.z[1] ?? [])]).toEqual([100, NaN]);
    expect(trace.text[0]?.[0]).toBe('&lt;b>0');
    expect(heatRows(drawn)?.ranks).toEqual([[0], [1]]);
  });
});

describe('what makes a tab deeper', () => {
  const trans = nullTranslator.load('gipfel');
  const job = { metrics: [], source: '' } as unknown as IJobDocument;

  it.each(['overview', 'ranks', 'topology', 'metrics', 'events', 'communication', 'network', 'checkpoints'])(
    'is said with its cost and a page: %s',
    tab => {
      const found = depthOf(tab, job, trans);
      expect(found?.text).toMatch(/cost|takes|adds|% to|no(thing)?\b|per call|write|once a minute|pause/);
      expect(found?.page).toMatch(/^https:/);
    }
  );
});
