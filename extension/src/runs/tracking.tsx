import { showErrorMessage } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { errorMessage } from '../common/error-message';
import { FormBody, untilAccepted } from '../services/dialog';
import type { RunsModel } from './model';

interface IProps {
  readonly run: string;
  readonly model: RunsModel;
  readonly trans: TranslationBundle;
}

/** The button that sends a run to an MLflow server; then how far it is, and the link to its page there. */
export function RunTracking({ run, model, trans }: IProps): React.JSX.Element {
  React.useEffect(() => {
    void model.fetchTracking(run);
  }, [run, model]);
  const tracking = model.trackings.get(run);
  const sending = tracking?.sending_s ?? null;
  return (
    <>
      <button
        className="jp-Gipfel-button"
        disabled={tracking === undefined || sending !== null}
        title={
          tracking?.to
            ? trans.__('Send what is missing at %1', tracking.to)
            : trans.__('Send parameters, metrics and files to an MLflow server')
        }
        onClick={() => void sendRun({ run, model, trans })}
      >
        {trans.__('Send to MLflow')}
      </button>
      <span className="jp-Gipfel-small" role="status">
        {sending !== null && trans.__('Sending to MLflow… %1 s', sending)}
        {tracking !== undefined && sending === null && tracking.problem !== '' && `✗ ${tracking.problem}`}
      </span>
      {tracking !== undefined && tracking.url !== '' && sending === null && (
        <a href={tracking.url} target="_blank" rel="noopener noreferrer">
          {trans.__('Open in MLflow')}
        </a>
      )}
    </>
  );
}

/** Send a run to the configured server; without one, ask for an address until the server accepts it. */
async function sendRun({ run, model, trans }: IProps): Promise<void> {
  if (model.trackings.get(run)?.to) {
    try {
      await model.track(run, '');
    } catch (error) {
      void showErrorMessage(trans.__('%1 can’t be sent to MLflow', run), errorMessage(error));
    }
    return;
  }
  const body = new FormBody<{ to: string }>({ to: model.lastAddress }, ({ to }, change) => (
    <label>
      <span>{trans.__('Address of the MLflow server')}</span>
      <input
        className="jp-Gipfel-field"
        name="to"
        value={to}
        placeholder="http://127.0.0.1:5000"
        onChange={event => {
          change({ to: event.target.value });
        }}
      />
      <small>{trans.__('$GIPFEL_TRACK_TO sets it for all your runs.')}</small>
    </label>
  ));
  await untilAccepted(body, trans.__('Send %1 to MLflow', run), trans.__('Send'), ({ to }) =>
    model.track(run, to)
  );
}
