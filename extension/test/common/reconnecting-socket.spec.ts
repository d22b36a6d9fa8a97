import type { StreamMessage } from '../../src/api';
import { ReconnectingSocket } from '../../src/common/reconnecting-socket';
import { FakeSocket } from './fake-socket';

jest.useFakeTimers();

const STATUS = '{"type":"status","status":{"state":"live"}}';

function streamOf(): { stream: ReconnectingSocket<StreamMessage>; sockets: FakeSocket[]; states: string[] } {
  const sockets: FakeSocket[] = [];
  const states: string[] = [];
  const stream = new ReconnectingSocket<StreamMessage>(
    () => 'ws://lab/gipfel',
    () => {
      const socket = new FakeSocket();
      sockets.push(socket);
      return socket as unknown as WebSocket;
    }
  );
  stream.connectionChanged.connect((_, state) => states.push(state));
  return { stream, sockets, states };
}

describe('ReconnectingSocket', () => {
  beforeEach(() => jest.spyOn(Math, 'random').mockReturnValue(0.5));

  it('is open once the server has spoken', () => {
    const { stream, sockets, states } = streamOf();
    const received: string[] = [];
    stream.received.connect((_, message) => received.push(message.type));
    stream.connect();
    sockets[0]?.onmessage?.({ data: STATUS });
    expect(received).toEqual(['status']);
    expect(states).toEqual(['connecting', 'open']);
  });

  it('comes back after a loss, more slowly each time', () => {
    const { stream, sockets, states } = streamOf();
    stream.connect();
    for (const waitMs of [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]) {
      const before = sockets.length;
      sockets.at(-1)?.onclose?.();
      jest.advanceTimersByTime(waitMs - 1);
      expect(sockets).toHaveLength(before);
      jest.advanceTimersByTime(1);
      expect(sockets).toHaveLength(before + 1);
    }
    expect(states).toEqual(['connecting', 'retrying']);
    sockets.at(-1)?.onmessage?.({ data: STATUS });
    sockets.at(-1)?.onclose?.();
    const before = sockets.length;
    jest.advanceTimersByTime(1_000);
    expect(sockets).toHaveLength(before + 1);
  });

  it('closes its connection while it is paused, and does not come back by itself', () => {
    const { stream, sockets } = streamOf();
    stream.connect();
    stream.pause();
    expect(sockets[0]?.closed).toBe(true);
    jest.advanceTimersByTime(600_000);
    expect(sockets).toHaveLength(1);
    stream.connect();
    expect(sockets).toHaveLength(2);
  });

  it('sends to a connection that is open, and to no other', () => {
    const { stream, sockets } = streamOf();
    stream.send({ type: 'view' });
    stream.connect();
    stream.send({ type: 'view' });
    expect(sockets[0]?.sent).toEqual(['{"type":"view"}']);
    stream.dispose();
    stream.connect();
    expect(sockets).toHaveLength(1);
  });
});
