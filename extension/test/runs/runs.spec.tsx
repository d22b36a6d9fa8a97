import { nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import type { IRunComparison, IRunTracking, ITableRow } from '../../src/api';
import { arrange, runColumns } from '../../src/runs/columns';
import { RunComparison } from '../../src/runs/comparison';
import { RunsModel } from '../../src/runs/model';
import type { INotesChange, IRemoval, RunRequests } from '../../src/runs/requests';

const trans: TranslationBundle = nullTranslator.load('gipfel');
const columns = runColumns(trans);

function run(name: string, values: Partial<ITableRow> = {}): ITableRow {
  return {
    score: null, loss: '', loss_points: null, duration_s: null, gpu_hours: null, energy_wh: null, commit: '',
    changed_files: null, display_name: '', note: '', tags: [], pinned: false, name, folder: `/runs/${name}`,
    kind: 'server', job_id: '', started: '', ended: '', exit_status: null, bytes: 0, modified: 0,
    in_use_reason: '', parameters: {}, throughput: null, throughput_name: '', ...values
  }; // prettier-ignore
}

const names = (rows: readonly ITableRow[]): string[] => rows.map(each => each.name);

/** A server with these runs, which keeps those that are pinned. */
class Requests {
  constructor(public runs: readonly ITableRow[]) {}
  readonly compared: string[][] = [];

  list(): Promise<readonly ITableRow[]> {
    return Promise.resolve(this.runs);
  }

  change(name: string, changes: INotesChange): Promise<void> {
    this.runs = this.runs.map(each => (each.name === name ? { ...each, ...changes } : each));
    return Promise.resolve();
  }

  remove(chosen: readonly string[]): Promise<IRemoval> {
    const kept = this.runs.filter(each => chosen.includes(each.name) && each.pinned);
    this.runs = this.runs.filter(each => !chosen.includes(each.name) || each.pinned);
    return Promise.resolve({
      removed: chosen.filter(each => !names(kept).includes(each)),
      kept: kept.map(each => ({ run: each.name, reason: 'it is pinned' }))
    });
  }

  readonly tracked: [string, string][] = [];
  seconds: number | null = 0;

  tracking(): Promise<IRunTracking> {
    const url = this.seconds === null ? 'http://h/#/experiments/1/runs/2' : '';
    return Promise.resolve({ to: '', url, sending_s: this.seconds, problem: '' });
  }

  track(name: string, to: string): Promise<IRunTracking> {
    this.tracked.push([name, to]);
    return to === '' ? Promise.reject(new Error('No MLflow server is configured.')) : this.tracking();
  }

  compare(chosen: readonly string[]): Promise<IRunComparison> {
    this.compared.push([...chosen]);
    return Promise.reject(new Error('One of them is damaged.'));
  }
}

function modelOf(...runs: ITableRow[]): { model: RunsModel; requests: Requests } {
  const requests = new Requests(runs);
  return { model: new RunsModel(requests as unknown as RunRequests), requests };
}

describe('the table of runs', () => {
  it('has parameters, score, throughput and energy', () => {
    const values = {
      parameters: { lr: '1e-4' },
      score: 62,
      throughput: 41234,
      throughput_name: 'tokens_per_s',
      energy_wh: 31000
    };
    const texts = Object.fromEntries(columns.map(each => [each.id, each.text(run('a', values))]));
    expect(columns.find(each => each.id === 'parameters')?.text(run('b', { parameters: { 0: '30' } }))).toBe(
      '30'
    );
    expect([texts.parameters, texts.score, texts.throughput, texts.energy_wh]).toEqual([
      'lr=1e-4', '62', '41.2 k tokens/s', '31 kWh'
    ]); // prettier-ignore
  });

  it('sorts numbers as numbers, unknown values last, and pinned runs first', () => {
    const runs = [
      run('a', { score: 9 }),
      run('b'),
      run('c', { score: 62, tags: ['lr'] }),
      run('d', { score: 3, pinned: true })
    ];
    const order = { column: 'score', descending: true };
    expect(names(arrange(runs, columns, order, ''))).toEqual(['d', 'c', 'a', 'b']);
    expect(names(arrange(runs, columns, { ...order, descending: false }, ''))).toEqual(['d', 'a', 'c', 'b']);
    expect(names(arrange(runs, columns, order, ' LR 62 '))).toEqual(['c']);
  });

  it('says in words how a run ended, and its numbers with units', () => {
    const ended = {
      ended: '2026-11-24T04:00:00+00:00',
      exit_status: 1,
      energy_wh: 31_000,
      duration_s: 10_920
    };
    const text = columns.map(each =>
      each.text(run('a', { ...ended, gpu_hours: 48, loss: 'start_up', loss_points: 7.4 }))
    );
    expect(text).toEqual(
      expect.arrayContaining(['start-up 7', '3 h 2 min', '48', '31 kWh', 'failed (exit status 1)'])
    );
  });

  it('keeps what the server keeps, and says why', async () => {
    const { model } = modelOf(run('a', { pinned: true }), run('b'), run('c'));
    await model.refresh();
    ['a', 'b'].forEach(each => {
      model.toggle(each);
    });
    await model.removeSelected();
    expect(names(model.runs ?? [])).toEqual(['a', 'c']);
    expect(model.selected).toEqual(['a']);
    expect(model.problems).toEqual(['a was kept: it is pinned.']);
  });

  it('selects the runs to prune: neither the newest, nor those pinned, tagged or in use', async () => {
    const old = { tags: ['x'], modified: 1 };
    const { model } = modelOf(
      run('a', { modified: 9 }),
      run('b', old),
      run('c', { pinned: true }),
      run('d', { modified: 2 }),
      run('e', { in_use_reason: 'its job runs' })
    );
    await model.refresh();
    expect(model.selectOld(1)).toBe(1);
    expect(model.selected).toEqual(['d']);
    expect(model.selectOld(2)).toBe(0);
  });

  it('compares in the order of selection, and shows the error of a comparison that fails', async () => {
    const { model, requests } = modelOf(run('a'), run('b'));
    await model.refresh();
    ['b', 'a'].forEach(each => {
      model.toggle(each);
    });
    await model.compareSelected();
    expect(requests.compared).toEqual([['b', 'a']]);
    expect(model.problems).toEqual(['One of them is damaged.']);
    expect(model.busy).toBe(false);
  });

  it('asks how far runs are only while one is being sent, and keeps the address', async () => {
    jest.useFakeTimers();
    const { model, requests } = modelOf(run('a'));
    const asked = jest.spyOn(requests, 'tracking');
    await expect(model.track('a', '')).rejects.toThrow('No MLflow server is configured.');
    await model.track('a', 'http://h');
    expect([model.lastAddress, requests.tracked.length]).toEqual(['http://h', 2]);
    await jest.advanceTimersByTimeAsync(2500);
    expect(model.trackings.get('a')?.sending_s).toBe(0);
    requests.seconds = null;
    await jest.advanceTimersByTimeAsync(1500);
    expect(model.trackings.get('a')?.url).toContain('/runs/2');
    const before = asked.mock.calls.length;
    await jest.advanceTimersByTimeAsync(60_000);
    expect(asked.mock.calls.length).toBe(before);
    jest.useRealTimers();
  });

  it('shows a change of the notes', async () => {
    const { model } = modelOf(run('a'));
    await model.refresh();
    await model.change('a', { display_name: 'baseline', tags: ['x'] });
    expect(model.runs?.[0]?.display_name).toBe('baseline');
  });
});

describe('a comparison', () => {
  it('says better and worse in words, and leaves out what is empty in all runs', () => {
    const difference = { commits: ['b1 Fix it'], missing_commits: [], files: ['train.py'], reason: '' };
    const commit = {
      commit: '0123456789',
      branch: '',
      changed_files: 0,
      same_changes: null,
      difference: null
    };
    const comparison: IRunComparison = {
      runs: [run('a', { display_name: 'first' }), run('b')],
      configuration: [
        { key: 'options.qos', values: [null, ''] },
        { key: 'options.gpus', values: ['1', '4'] }
      ],
      more: 2,
      git: [commit, { ...commit, changed_files: 1, difference }],
      measurements: [
        { name: 'score', unit: 'points', values: [40, 62], changes: [null, 22], better: [null, true] },
        { name: 'energy', unit: 'Wh', values: [null, null], changes: [null, null], better: [null, null] }
      ],
      pace: []
    };
    const html = renderToStaticMarkup(
      <RunComparison comparison={comparison} trans={trans} onClose={() => undefined} />
    );
    expect(html).toContain('62<small> better</small>');
    expect(html).toContain('options.gpus');
    expect(html).toContain('>first</th>');
    expect(html).not.toContain('options.qos');
    expect(html).not.toContain('energy');
    expect(html).toContain('2 more differences');
    expect(html).toContain('01234567 · 1 file changed · 1 commit, 1 file: b1 Fix it; train.py');
  });
});
