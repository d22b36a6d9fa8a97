import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILimits } from '../api';
import { errorMessage } from '../common/error-message';
import { Notice } from '../common/notice';

interface IProps {
  /** Request the limits. */
  readonly fetchLimits: () => Promise<ILimits>;
  readonly trans: TranslationBundle;
}

/** Limits of the user's jobs and the remaining resources, as in `gipfel quota`; requested when it is opened. */
export function Limits({ fetchLimits, trans }: IProps): React.JSX.Element {
  const [limits, setLimits] = React.useState<ILimits | null>(null);
  const [error, setError] = React.useState('');
  const load = (): void => {
    setError('');
    setLimits(null);
    fetchLimits().then(setLimits, (reason: unknown) => {
      setError(errorMessage(reason));
    });
  };
  return (
    <details
      className="jp-Gipfel-limits"
      onToggle={event => {
        if (event.currentTarget.open) {
          load();
        }
      }}
    >
      <summary>{trans.__('Limits, and what is left')}</summary>
      {error !== '' && <Notice shape="✗" text={error} error />}
      {limits === null && error === '' && <p role="status">{trans.__('Asking the scheduler…')}</p>}
      {limits?.sections.length === 0 && <p>{trans.__('Jobs have no limits here.')}</p>}
      {limits?.sections.map(({ title, lines }) => (
        <React.Fragment key={title}>
          <strong>{title}</strong>
          {lines.length > 0 && (
            <ul>
              {lines.map(line => (
                <li key={line}>{line}</li>
              ))}
            </ul>
          )}
        </React.Fragment>
      ))}
      {limits !== null && limits.storage !== '' && (
        <>
          <strong>{trans.__('Storage')}</strong>
          <pre className="jp-Gipfel-work-log" tabIndex={0} aria-label={trans.__('Storage quota')}>
            {limits.storage}
          </pre>
        </>
      )}
    </details>
  );
}
