import type { IJobEvent, ILifetime } from '../../src/api';
import { JobNotices } from '../../src/notices/job-notices';
import { dueNotice, LifetimeModel } from '../../src/notices/model';
import { LifetimeNotices } from '../../src/notices/notices';
import type { LifetimeRequests } from '../../src/notices/requests';
import { notified, nullTranslator } from '../jupyterlab';

jest.useFakeTimers();

const passed = (ms: number): Promise<void> => jest.advanceTimersByTimeAsync(ms);
const MINUTE_MS = 60_000;

/** A server with twelve minutes left. */
function serverOf(): { answer: () => Promise<ILifetime>; ends: { ms: number } } {
  const ends = { ms: Date.now() + 12 * MINUTE_MS };
  const answer = (): Promise<ILifetime> =>
    Promise.resolve({
      now_ms: Date.now(),
      ends_ms: ends.ms,
      notices_s: [600, 120],
      extend_s: 3600,
      idle: null,
      events: []
    });
  return { answer, ends };
}

describe('notices', () => {
  beforeEach(() => {
    notified.length = 0;
  });

  it('are due at the smallest time that is reached', () => {
    expect(dueNotice([1800, 600, 120], 1801_000)).toBeNull();
    expect(dueNotice([1800, 600, 120], 600_000)).toBe(600);
    expect(dueNotice([1800, 600, 120], 1)).toBe(120);
  });

  it('come at their moments, the last one as an error, and go away with an extension', async () => {
    const { answer, ends } = serverOf();
    const lifetime = jest.fn(answer);
    const extend = (): Promise<ILifetime> => {
      ends.ms += 60 * MINUTE_MS;
      return answer();
    };
    const model = new LifetimeModel({ lifetime, extend } as unknown as LifetimeRequests);
    const extended = jest.fn();
    new LifetimeNotices(model, nullTranslator.load() as never, extended);
    model.start();
    await passed(MINUTE_MS);
    expect(notified).toEqual([]);
    await passed(MINUTE_MS + 1_000);
    expect(notified.map(each => each.type)).toEqual(['warning']);
    await passed(8 * MINUTE_MS);
    expect(notified.map(each => each.type)).toEqual(['warning', 'error']);
    const [action] = notified[1]?.actions as { label: string; callback: () => void }[];
    expect(action?.label).toBe('Extend by 1 h');
    action?.callback();
    await passed(0);
    expect(extended).toHaveBeenCalledTimes(1);
    const asked = lifetime.mock.calls.length;
    await passed(MINUTE_MS);
    expect(lifetime.mock.calls.length - asked).toBe(2);
    expect(notified).toHaveLength(2);
    model.dispose();
  });
});

describe('notices of jobs', () => {
  const event = (timeMs: number, kind: IJobEvent['kind'], more: Partial<IJobEvent> = {}): IJobEvent => ({
    time_ms: timeMs,
    kind,
    title: `Job ${timeMs} ${kind}`,
    reason: 'A reason.',
    workload: '',
    report: '',
    ...more
  });

  const key = (each: IJobEvent): string => `${each.time_ms} ${each.title}`;

  /** Show the events of several responses, and return what the buttons and the memory were given. */
  function show(seen: string[] | null, nowMs: number, ...responses: IJobEvent[][]): unknown[] {
    notified.length = 0;
    const given: unknown[] = [];
    const model = new LifetimeModel({} as unknown as LifetimeRequests);
    const actions = {
      openWorkload: (id: string) => void given.push(id),
      openReport: (path: string) => void given.push(path),
      saveSeen: (keys: readonly string[]) => void given.push(keys)
    };
    new JobNotices(model, nullTranslator.load() as never, actions, seen);
    for (const events of responses) {
      const lifetime = { now_ms: nowMs, ends_ms: null, notices_s: [], extend_s: 0, idle: null, events };
      (model.changed as unknown as { emit: (value: ILifetime) => void }).emit(lifetime);
    }
    model.dispose();
    return given;
  }

  it('show what is new since the last visit, once', () => {
    const events = [event(900, 'ended'), event(1_100, 'failed'), event(1_200, 'idle')];
    expect(show([key(event(900, 'ended'))], 1_300, events, events)).toEqual([events.map(key)]);
    expect(notified.map(each => [each.message, each.type])).toEqual([
      ['Job 1100 failed. A reason.', 'error'],
      ['Job 1200 idle. A reason.', 'warning']
    ]);
  });

  it('show an event of a node whose clock is behind, and two of one moment', () => {
    const [first, late, same] = [event(1_100, 'ended'), event(1_000, 'failed'), event(1_100, 'idle')];
    show([], 1_200, [first], [first, late], [first, late, same]);
    expect(notified.map(each => each.type)).toEqual(['success', 'error', 'warning']);
  });

  it('show nothing old at the first visit, and five at most at once', () => {
    expect(show(null, 1_000, [event(900, 'failed')])).toEqual([['900 Job 900 failed']]);
    expect(notified).toEqual([]);
    const many = [1, 2, 3, 4, 5, 6, 7].map(each => event(2_000 + each, 'ended'));
    expect(show([], 2_100, many)).toEqual([many.map(key)]);
    expect(notified.map(each => each.message.slice(0, 8))).toEqual([
      'Job 2003',
      'Job 2004',
      'Job 2005',
      'Job 2006',
      'Job 2007'
    ]);
  });

  it('say when what happened a while ago', () => {
    const nowMs = Date.UTC(2026, 0, 2, 9);
    show([], nowMs, [event(nowMs - 3 * 3_600_000, 'failed'), event(nowMs - 60_000, 'idle')]);
    expect(notified[0]?.message).toMatch(/^Job \d+ failed \(\d\d:\d\d .+\)\. A reason\.$/);
    expect(notified[1]?.message).toMatch(/^Job \d+ idle\. A reason\.$/);
  });

  it('open the workload and the report', () => {
    const given = show([], 3, [
      event(1, 'failed', { workload: 'launch:alps-7/2', report: 'gipfel/runs/alps-7/report' }),
      event(2, 'started', { reason: '' })
    ]);
    const actions = notified[0]?.actions as { label: string; callback: () => void }[];
    expect(actions.map(each => each.label)).toEqual(['Show workload', 'Open report']);
    actions.forEach(each => {
      each.callback();
    });
    expect(given.slice(1)).toEqual(['launch:alps-7/2', 'gipfel/runs/alps-7/report']);
    expect(notified[1]).toEqual({ message: 'Job 2 started', type: 'info', actions: [] });
  });
});
