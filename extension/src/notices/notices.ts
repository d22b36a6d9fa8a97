import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { ILifetime } from '../api';
import { formatLocalTime } from '../common/clock';
import { errorMessage } from '../common/error-message';
import { dueNotice, type LifetimeModel } from './model';

const MINUTE_MS = 60_000;

/** Notifications that the job's time limit is near, or that the hub will stop an idle server. */
export class LifetimeNotices {
  constructor(
    private readonly _model: LifetimeModel,
    private readonly _trans: TranslationBundle,
    private readonly _onExtended: () => void
  ) {
    _model.changed.connect((_, lifetime) => {
      this._showTime(lifetime);
      this._showIdle(lifetime);
    });
  }

  private _showTime(lifetime: ILifetime): void {
    if (lifetime.ends_ms === null) {
      return;
    }
    const leftMs = this._model.leftMs(lifetime.ends_ms);
    const due = dueNotice(lifetime.notices_s, leftMs);
    if (due === this._shown && lifetime.ends_ms === this._endsMs) {
      return;
    }
    this._shown = due;
    this._endsMs = lifetime.ends_ms;
    Notification.dismiss(this._timeId);
    this._timeId = '';
    if (due === null || leftMs <= 0) {
      return;
    }
    const last = due === Math.min(...lifetime.notices_s);
    this._timeId = Notification.emit(
      // No "in 26 min": the text of a notification does not change as time passes.
      this._trans.__("This server's time ends at %1. Save your work.", formatLocalTime(lifetime.ends_ms)),
      last ? 'error' : 'warning',
      { autoClose: false, actions: lifetime.extend_s > 0 ? [this._extendAction(lifetime.extend_s)] : [] }
    );
  }

  private _showIdle(lifetime: ILifetime): void {
    if (lifetime.idle === null) {
      Notification.dismiss(this._idleId);
      this._idleId = '';
      this._stopMs = 0;
      return;
    }
    if (this._idleId && lifetime.idle.stop_ms === this._stopMs) {
      return;
    }
    Notification.dismiss(this._idleId);
    this._stopMs = lifetime.idle.stop_ms;
    this._idleId = Notification.emit(
      this._trans.__(
        'Nothing has run here since %1. This server is stopped at %2, and what it holds is given back.',
        formatLocalTime(lifetime.idle.since_ms),
        formatLocalTime(lifetime.idle.stop_ms)
      ),
      'warning',
      {
        autoClose: false,
        actions: [
          {
            label: this._trans.__('Keep it running'),
            displayType: 'accent',
            callback: () => void this._attempt(() => this._model.keepAlive())
          }
        ]
      }
    );
  }

  private _extendAction(seconds: number): Notification.IAction {
    return {
      label: this._trans.__('Extend by %1', this._durationText(seconds * 1000)),
      displayType: 'accent',
      callback: () =>
        void this._attempt(async () => {
          await this._model.extend();
          this._onExtended();
        })
    };
  }

  private async _attempt(action: () => Promise<void>): Promise<void> {
    try {
      await action();
    } catch (error) {
      Notification.error(errorMessage(error), { autoClose: false });
    }
  }

  private _durationText(spanMs: number): string {
    if (spanMs < MINUTE_MS) {
      return this._trans.__('%1 s', Math.max(Math.round(spanMs / 1000), 0));
    }
    const minutes = Math.round(spanMs / MINUTE_MS);
    const hours = Math.floor(minutes / 60);
    if (hours === 0) {
      return this._trans.__('%1 min', minutes);
    }
    return minutes % 60 === 0
      ? this._trans.__('%1 h', hours)
      : this._trans.__('%1 h %2 min', hours, minutes % 60);
  }

  private _shown: number | null = null;
  private _endsMs = 0;
  private _timeId = '';
  private _idleId = '';
  private _stopMs = 0;
}
