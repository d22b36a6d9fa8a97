import type { ServerConnection } from '@jupyterlab/services';

import type { IGpuActivity } from '../../src/api';
import { ServerChanges } from '../../src/common/server-changes';
import { textOf } from '../../src/status-bar/item';
import { ActivityModel } from '../../src/status-bar/model';
import { FakeSocket } from '../common/fake-socket';
import { nullTranslator } from '../jupyterlab';

jest.useFakeTimers();

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

  it('is there where there is a GPU, and shows no old number while the server does not respond', () => {
    const sockets: FakeSocket[] = [];
    const settings = {
      wsUrl: 'ws://lab/',
      WebSocket: class extends FakeSocket {
        constructor() {
          super();
          sockets.push(this);
        }
      }
    };
    const model = new ActivityModel(new ServerChanges(settings as unknown as ServerConnection.ISettings));
    const changed = jest.fn();
    model.changed.connect(changed);
    const push = (found: IGpuActivity): void =>
      sockets[0]?.onmessage?.({ data: JSON.stringify({ topic: 'activity', activity: found }) });
    expect(model.active).toBe(false);
    push(activity());
    expect(model.active).toBe(true);
    expect(model.activity?.share).toBe(0.524);
    push(activity({ gpus: 0 }));
    expect(model.active).toBe(false);
    push(activity());
    sockets[0]?.onclose?.();
    expect(model.activity).toBeNull();
    expect(changed).toHaveBeenCalledTimes(4);
    model.dispose();
  });
});
