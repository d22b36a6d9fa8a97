import type { ITimeRange } from '../../src/api';
import { formatLocalTime } from '../../src/common/clock';
import { SaturationModel } from '../../src/saturation/model';
import type { SaturationRequests } from '../../src/saturation/requests';
import { runLabel } from '../../src/common/run-label';
import { FakeSocket } from '../common/fake-socket';

jest.useFakeTimers();

const passed = (ms: number): Promise<void> => jest.advanceTimersByTimeAsync(ms);
const stretch = (growing: boolean): ITimeRange => ({
  run: 'other',
  figures: { host: { data: [], layout: {} } },
  events: [],
  devices: [],
  bucket_s: 1,
  growing
});

function modelOf(requests: Partial<SaturationRequests> = {}): {
  model: SaturationModel;
  sockets: FakeSocket[];
  source: { run: null; refreshRun: jest.Mock };
} {
  const sockets: FakeSocket[] = [];
  const source = { run: null, refreshRun: jest.fn(() => Promise.resolve()) };
  class Socket extends FakeSocket {
    constructor() {
      super();
      sockets.push(this);
    }
  }
  const settings = { WebSocket: Socket };
  const all = { settings, streamUrl: () => 'ws://lab', ...requests } as unknown as SaturationRequests;
  return { model: new SaturationModel(all, source), sockets, source };
}

it('names runs with the local time of their beginning', () => {
  const started = '2026-11-27T21:24:27+00:00';
  const run = {
    run: 'local-1',
    display_name: '',
    kind: '',
    cluster: 'local',
    job_id: '1',
    edf: '',
    started,
    current: false
  };
  expect(runLabel(run)).toBe(`local-1 · ${formatLocalTime(Date.parse(started))}`);
  expect(runLabel({ ...run, cluster: 'alps', edf: 'torch', started: '' })).toBe('alps 1 · torch');
  expect(runLabel({ ...run, display_name: 'train-7b', edf: 'torch', started: '' })).toBe('train-7b · torch');
});

describe('SaturationModel', () => {
  it('streams while the panel is visible, and asks what the server runs in', () => {
    const { model, sockets, source } = modelOf();
    model.setVisible(true);
    expect(sockets).toHaveLength(1);
    expect(source.refreshRun).toHaveBeenCalledTimes(1);
    model.setVisible(false);
    expect(model.connection).toBe('paused');
  });

  it('stays paused when the panel is shown again, until the user resumes', () => {
    const { model, sockets } = modelOf();
    model.setVisible(true);
    model.pause(true);
    model.setVisible(false);
    model.setVisible(true);
    expect(model.connection).toBe('paused');
    model.pause(false);
    expect(sockets).toHaveLength(2);
  });

  it('asks once for several choices that follow each other', async () => {
    const { model, sockets } = modelOf();
    model.setVisible(true);
    model.selection.setMetric('GPU_UTIL');
    model.selection.setLast(60);
    model.selection.setDark(true);
    await passed(1_000);
    expect(sockets[0]?.sent.map(text => JSON.parse(text) as unknown)).toEqual([
      { type: 'view', window: 60, dark: true, metric: 'GPU_UTIL', gpus: [], gauges: [] }
    ]);
  });

  it('reads a run that is being recorded again every five seconds while the panel is visible', async () => {
    const read = jest.fn(() => Promise.resolve(stretch(true)));
    const { model } = modelOf({ stretch: read, score: () => Promise.reject(new Error('none')) });
    model.setVisible(true);
    model.selection.setRun('other');
    await passed(200);
    expect(read).toHaveBeenCalledTimes(1);
    expect(model.growing).toBe(true);
    await passed(10_000);
    // Its score is unknown: the first reading ended with that, and nothing reads it again.
    expect(read).toHaveBeenCalledTimes(1);
    expect(model.problem).toBe('none');
  });

  it.each([
    [true, 3],
    [false, 1]
  ])('reads a growing run (%s) %i times in eleven seconds', async (growing, times) => {
    const read = jest.fn(() => Promise.resolve(stretch(growing)));
    const { model } = modelOf({ stretch: read, score: () => Promise.resolve({} as never) });
    model.setVisible(true);
    model.selection.setRun('other');
    await passed(11_000);
    expect(read).toHaveBeenCalledTimes(times);
    model.setVisible(false);
    await passed(60_000);
    expect(read).toHaveBeenCalledTimes(times);
  });

  it('shows what went wrong with what the user asked for', async () => {
    const { model } = modelOf({ startSource: () => Promise.reject(new Error('A recorder runs already.')) });
    await model.startSimulation();
    expect(model.problem).toBe('A recorder runs already.');
    expect(model.busy).toBe(false);
  });
});
