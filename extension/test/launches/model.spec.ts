import type { ILaunch, ILogPage } from '../../src/api';
import { LaunchesModel } from '../../src/launches/model';
import type { LaunchRequests } from '../../src/launches/requests';

jest.useFakeTimers();

const passed = (ms: number): Promise<void> => jest.advanceTimersByTimeAsync(ms);
const launch = (phase: string): ILaunch => ({ id: 'run/1', phase }) as ILaunch;
const page = (changes: Partial<ILogPage>): ILogPage => ({
  lines: [],
  position: {},
  more: false,
  ended: false,
  flight_recorder: [],
  ...changes
});

function modelOf(requests: Partial<LaunchRequests>): LaunchesModel {
  return new LaunchesModel(requests as LaunchRequests);
}

describe('LaunchesModel', () => {
  it('asks every three seconds while a launch runs, every thirty when all have ended', async () => {
    const found = [launch('running'), launch('running')];
    const list = jest.fn(() => Promise.resolve([found.shift() ?? launch('ended')]));
    const model = modelOf({ list });
    model.setVisible(true);
    await passed(0);
    expect(model.running).toBe(1);
    await passed(6_000);
    expect(list).toHaveBeenCalledTimes(3);
    expect(model.running).toBe(0);
    await passed(29_000);
    expect(list).toHaveBeenCalledTimes(3);
    await passed(1_000);
    expect(list).toHaveBeenCalledTimes(4);
  });

  it('keeps the list and says why there is no new answer', async () => {
    const list = jest
      .fn<Promise<ILaunch[]>, []>()
      .mockResolvedValueOnce([launch('running')])
      .mockRejectedValueOnce(new Error('The notebook server answered 500 to launches.'))
      .mockResolvedValue([launch('running')]);
    const model = modelOf({ list });
    model.setVisible(true);
    await passed(3_000);
    expect(model.items).toHaveLength(1);
    expect(model.error).toBe('The notebook server answered 500 to launches.');
    await passed(30_000);
    expect(model.error).toBe('');
  });

  it('shows a launch as busy while it is stopped, and what went wrong', async () => {
    const list = jest.fn(() => Promise.resolve([launch('running')]));
    const stop = jest.fn(() => Promise.reject(new Error('It has ended.')));
    const model = modelOf({ list, stop });
    const stopped = model.stop('run/1');
    expect(model.isBusy('run/1')).toBe(true);
    await passed(0);
    await stopped;
    expect(model.isBusy('run/1')).toBe(false);
    expect(list).toHaveBeenCalledTimes(1);
    expect(model.error).toBe('It has ended.');
  });

  it('reads a log to its end, page by page, and then no more', async () => {
    const pages = [
      page({
        lines: [[0, 'a', null, false]],
        position: { at: 1 },
        more: true,
        flight_recorder: ['rank 0 waits']
      }),
      page({ lines: [[0, 'b', null, false]], position: { at: 2 } }),
      page({ lines: [[0, 'c', null, true]], position: { at: 3 }, ended: true })
    ];
    const log = jest.fn<Promise<ILogPage>, [string, unknown]>(() =>
      Promise.resolve(pages.shift() ?? page({}))
    );
    const model = modelOf({ list: () => Promise.resolve([launch('running')]), log });
    model.setVisible(true);
    model.openLog('run/1');
    await passed(10_000);
    expect(log.mock.calls.map(([, position]) => position)).toEqual([null, { at: 1 }, { at: 2 }]);
    expect(model.log.lines.map(([, text]) => text)).toEqual(['a', 'b', 'c']);
    expect(model.flight).toEqual(['rank 0 waits']);
  });

  it('forgets the lines of a log that was closed while they came', async () => {
    const answers: ((found: ILogPage) => void)[] = [];
    const log = (): Promise<ILogPage> => new Promise(resolve => answers.push(resolve));
    const model = modelOf({ log });
    model.openLog('run/1');
    await passed(0);
    model.openLog('');
    answers[0]?.(page({ lines: [[0, 'late', null, false]] }));
    await passed(0);
    expect(model.log.lines).toEqual([]);
  });
});
