import type { ILifetime } from '../../src/api';
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
      idle: null
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
