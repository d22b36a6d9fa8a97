import type { IGpuActivity } from '../../src/api';
import { textOf } from '../../src/status-bar/item';
import { ActivityModel } from '../../src/status-bar/model';
import { nullTranslator } from '../jupyterlab';

jest.useFakeTimers();

const passed = (ms: number): Promise<void> => jest.advanceTimersByTimeAsync(ms);
const activity = (changes: Partial<IGpuActivity> = {}): IGpuActivity => ({
  gpus: 4,
  share: 0.524,
  metric: 'SM_ACTIVE',
  simulated: false,
  ...changes
});

describe('the status bar', () => {
  it.each([
    [activity(), 'SM 52\u00a0%'],
    [activity({ share: 0 }), 'SM 0\u00a0%'],
    [activity({ metric: 'GPU_UTIL' }), 'GPU 52\u00a0%'],
    [activity({ share: null, metric: '' }), 'SM –'],
    [activity({ simulated: true }), 'SM 52\u00a0% (simulated)']
  ])('names what it shows: %#', (found, text) => {
    expect(textOf(found, nullTranslator.load() as never)).toBe(text);
  });

  it('is there where there is a GPU, and asks every five seconds', async () => {
    const ask = jest.fn(() => Promise.resolve(activity()));
    const model = new ActivityModel(ask);
    expect(model.active).toBe(false);
    await passed(10);
    expect(model.active).toBe(true);
    await passed(10_000);
    expect(ask).toHaveBeenCalledTimes(3);
    ask.mockResolvedValue(activity({ gpus: 0 }));
    await passed(5_000);
    expect(model.active).toBe(false);
    model.dispose();
  });

  it('shows no old number while the server does not answer', async () => {
    const ask = jest.fn(() => Promise.resolve(activity()));
    const model = new ActivityModel(ask);
    await passed(10);
    ask.mockRejectedValue(new Error('gone'));
    await passed(5_000);
    expect(model.activity).toBeNull();
    model.dispose();
  });
});
