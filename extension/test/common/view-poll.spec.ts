import { Signal } from '@lumino/signaling';

import { ViewPoll } from '../../src/common/view-poll';

jest.useFakeTimers();

const passed = (ms: number): Promise<void> => jest.advanceTimersByTimeAsync(ms);

describe('ViewPoll', () => {
  it('asks at once when its view is shown, then in the pauses that the answers give', async () => {
    const waits = [1_000, 5_000, 5_000];
    const ask = jest.fn(() => Promise.resolve(waits.shift() ?? 5_000));
    const poll = new ViewPoll('test', ask);
    await passed(60_000);
    expect(ask).toHaveBeenCalledTimes(0);
    poll.setVisible(true);
    await passed(0);
    expect(ask).toHaveBeenCalledTimes(1);
    await passed(1_000);
    expect(ask).toHaveBeenCalledTimes(2);
    await passed(4_999);
    expect(ask).toHaveBeenCalledTimes(2);
    await passed(1);
    expect(ask).toHaveBeenCalledTimes(3);
  });

  it('rests while its view is hidden', async () => {
    const ask = jest.fn(() => Promise.resolve(1_000));
    const poll = new ViewPoll('test', ask);
    poll.setVisible(true);
    await passed(0);
    poll.setVisible(false);
    await passed(60_000);
    expect(ask).toHaveBeenCalledTimes(1);
  });

  it('asks once when it is refreshed while its view is hidden', async () => {
    const ask = jest.fn(() => Promise.resolve(1_000));
    const poll = new ViewPoll('test', ask);
    const refreshed = poll.refresh();
    await passed(0);
    await refreshed;
    await passed(60_000);
    expect(ask).toHaveBeenCalledTimes(1);
  });

  it('asks anew for a refresh, though a request is under way', async () => {
    const answers: ((wait: number) => void)[] = [];
    const ask = jest.fn(() => new Promise<number>(resolve => answers.push(resolve)));
    const poll = new ViewPoll('test', ask);
    poll.setVisible(true);
    await passed(0);
    const refreshed = poll.refresh();
    await passed(0);
    expect(ask).toHaveBeenCalledTimes(2);
    // The answer to the first one comes late, and must not end the wait for the second.
    answers[0]?.(1_000);
    await passed(10_000);
    expect(ask).toHaveBeenCalledTimes(2);
    answers[1]?.(1_000);
    await refreshed;
    await passed(1_000);
    expect(ask).toHaveBeenCalledTimes(3);
  });

  it('asks ever more seldom while there is no answer', async () => {
    const ask = jest.fn(() => Promise.reject<number>(new Error('gone')));
    const poll = new ViewPoll('test', ask);
    poll.setVisible(true);
    await passed(600_000);
    expect(ask.mock.calls.length).toBeGreaterThan(20);
    expect(ask.mock.calls.length).toBeLessThan(300);
  });

  it('asks no more after a null, until it is refreshed', async () => {
    const ask = jest.fn(() => Promise.resolve(null));
    const poll = new ViewPoll('test', ask);
    poll.setVisible(true);
    await passed(60_000);
    expect(ask).toHaveBeenCalledTimes(1);
    void poll.refresh();
    await passed(60_000);
    expect(ask).toHaveBeenCalledTimes(2);
  });

  it('asks at a pushed change and not in between, and again in pauses when pushing stops', async () => {
    const changed = new Signal<object, void>({});
    const pushed = { open: true, changed };
    const ask = jest.fn(() => Promise.resolve(poll.pushed ? null : 1_000));
    const poll: ViewPoll = new ViewPoll('test', ask, pushed);
    changed.emit();
    await passed(60_000);
    expect(ask).toHaveBeenCalledTimes(0);
    poll.setVisible(true);
    await passed(600_000);
    expect(ask).toHaveBeenCalledTimes(1);
    changed.emit();
    await passed(600_000);
    expect(ask).toHaveBeenCalledTimes(2);
    pushed.open = false;
    changed.emit();
    await passed(2_500);
    expect(ask).toHaveBeenCalledTimes(5);
    poll.dispose();
  });
});
