import type { ServerConnection } from '@jupyterlab/services';
import { Signal, type ISignal } from '@lumino/signaling';

import type { IChangeMessage, IGpuActivity } from '../api';
import { ReconnectingSocket } from './reconnecting-socket';
import { socketUrl } from './request';

/** A topic whose changes the server pushes. */
export type ChangeTopic = IChangeMessage['topic'];

/** Pushed changes of one topic. */
export interface IPushed {
  /** True while the server pushes changes, so that polling is not needed. */
  readonly open: boolean;
  /** Emitted when the topic may have changed, and when pushing has stopped. */
  readonly changed: ISignal<unknown, void>;
}

/** The topics whose changes the server pushes to this page, while the page is visible. */
export class ServerChanges {
  constructor(settings: ServerConnection.ISettings) {
    this._socket = new ReconnectingSocket<IChangeMessage>(
      () => socketUrl(settings, 'changes'),
      url => new settings.WebSocket(url)
    );
    this._socket.received.connect((_, message) => {
      if (message.topic === 'activity') {
        this._activity = message.activity ?? null;
      }
      this._topic(message.topic).changed.emit();
    });
    this._socket.connectionChanged.connect((_, connection) => {
      // The server reports each topic soon after it is connected.
      if (connection === 'retrying') {
        this._activity = null;
        this._topics.forEach(topic => {
          topic.changed.emit();
        });
      }
    });
    document.addEventListener('visibilitychange', this._onVisibility);
    this._onVisibility();
  }

  /** The current activity of the GPUs; null while it is not known. */
  get activity(): IGpuActivity | null {
    return this._activity;
  }

  /** Return the changes of a topic. */
  of(name: ChangeTopic): IPushed {
    return this._topic(name);
  }

  /** Disconnect. */
  dispose(): void {
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._socket.dispose();
    Signal.clearData(this);
  }

  private _topic(name: ChangeTopic): Topic {
    let topic = this._topics.get(name);
    if (!topic) {
      topic = new Topic(this, this._socket);
      this._topics.set(name, topic);
    }
    return topic;
  }

  private readonly _onVisibility = (): void => {
    if (document.visibilityState === 'visible') {
      this._socket.connect();
    } else {
      this._socket.pause();
    }
  };

  private readonly _socket: ReconnectingSocket<IChangeMessage>;
  private readonly _topics = new Map<ChangeTopic, Topic>();
  private _activity: IGpuActivity | null = null;
}

class Topic implements IPushed {
  constructor(
    owner: ServerChanges,
    private readonly _socket: ReconnectingSocket<IChangeMessage>
  ) {
    this.changed = new Signal<ServerChanges, void>(owner);
  }

  get open(): boolean {
    return this._socket.connection === 'open';
  }

  readonly changed: Signal<ServerChanges, void>;
}

const OPENED = new WeakMap<ServerConnection.ISettings, ServerChanges>();

/** Return the changes that a server pushes: one connection for all plugins of the page. */
export function serverChanges(settings: ServerConnection.ISettings): ServerChanges {
  let changes = OPENED.get(settings);
  if (!changes) {
    changes = new ServerChanges(settings);
    OPENED.set(settings, changes);
  }
  return changes;
}
