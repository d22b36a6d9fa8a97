import type { IVetting } from '../../src/api';
import { VettingModel } from '../../src/vetting/model';
import type { VettingRequests } from '../../src/vetting/requests';

jest.useFakeTimers();

const passed = (ms: number): Promise<void> => jest.advanceTimersByTimeAsync(ms);
const vetting = (state: IVetting['state'], version: string): IVetting => ({
  state,
  version,
  problem: '',
  can_stop: false,
  updated_ms: 0,
  now_ms: 0
});

function modelOf(requests: Partial<VettingRequests>): VettingModel {
  const protocols = (): Promise<never> => Promise.resolve({ protocols: [], registry: false } as never);
  return new VettingModel({ protocols, ...requests } as unknown as VettingRequests, () => '');
}

describe('VettingModel', () => {
  it('asks every second while a vetting runs, every thirty when none does', async () => {
    const look = jest.fn(() => Promise.resolve(vetting('running', 'a')));
    const model = modelOf({ look });
    model.setVisible(true);
    await passed(3_000);
    expect(look).toHaveBeenCalledTimes(4);
    look.mockResolvedValue(vetting('ended', 'b'));
    await passed(30_000);
    expect(look).toHaveBeenCalledTimes(5);
  });

  it('says that the server does not answer, and notices when it does again', async () => {
    const look = jest.fn<Promise<IVetting>, []>().mockRejectedValue(new Error('gone'));
    const model = modelOf({ look });
    model.setVisible(true);
    await passed(0);
    expect(model.disconnected).toBe(true);
    look.mockResolvedValue(vetting('none', 'none'));
    await passed(30_000);
    expect(model.disconnected).toBe(false);
  });

  it('checks a text once its author pauses', async () => {
    const check = jest.fn(() => Promise.resolve({ valid: true, problems: [], lines: [], checks: [] }));
    const model = modelOf({ check });
    model.draft = { name: 'mine', text: '', meaning: null, changed: false };
    model.type({ text: 'checks:' });
    await passed(300);
    model.type({ text: 'checks: []' });
    await passed(399);
    expect(check).toHaveBeenCalledTimes(0);
    await passed(1);
    expect(check.mock.calls).toEqual([['checks: []']]);
    expect(model.draft.meaning?.valid).toBe(true);
  });
});
