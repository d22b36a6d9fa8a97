import { showErrorMessage } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IService, IServiceShareChange } from '../api';
import { FormBody, untilAccepted, type IFieldsProps } from './dialog';
import type { ServicesModel } from './model';

const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;

/** Show a dialog with the users and groups that can get access to a service, and give access to the chosen one. */
export async function shareService(
  model: ServicesModel,
  trans: TranslationBundle,
  service: IService
): Promise<void> {
  if (service.refusal) {
    await showErrorMessage(trans.__('%1 can’t be shared', service.id), service.refusal);
    return;
  }
  const body = new FormBody<IServiceShareChange>(
    { service: service.id, kind: 'user', name: '', seconds: DAY_S },
    (value, change) => <ShareFields value={value} change={change} trans={trans} />
  );
  const title = trans.__('Share %1', service.id);
  await untilAccepted(body, title, trans.__('Share'), value => model.share(value));
}

function ShareFields({ value, change, trans }: IFieldsProps<IServiceShareChange>): React.JSX.Element {
  return (
    <>
      <label>
        <span>{trans.__('With a')}</span>
        <select
          className="jp-Gipfel-field"
          name="kind"
          value={value.kind}
          onChange={event => {
            change({ kind: event.target.value });
          }}
        >
          <option value="user">{trans.__('user')}</option>
          <option value="group">{trans.__('group of yours')}</option>
        </select>
      </label>
      <label>
        <span>{trans.__('Name')}</span>
        <input
          className="jp-Gipfel-field"
          name="name"
          value={value.name}
          onChange={event => {
            change({ name: event.target.value });
          }}
        />
      </label>
      <TimeField value={value} change={change} trans={trans} />
    </>
  );
}

function TimeField({ value, change, trans }: IFieldsProps<IServiceShareChange>): React.JSX.Element {
  const times: readonly (readonly [number, string])[] = [
    [8 * HOUR_S, trans.__('8 hours')],
    [DAY_S, trans.__('a day')],
    [7 * DAY_S, trans.__('a week')],
    [30 * DAY_S, trans.__('30 days')]
  ];
  return (
    <label>
      <span>{trans.__('For')}</span>
      <select
        className="jp-Gipfel-field"
        name="seconds"
        value={value.seconds}
        onChange={event => {
          change({ seconds: Number(event.target.value) });
        }}
      >
        {times.map(([seconds, text]) => (
          <option key={seconds} value={seconds}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}
