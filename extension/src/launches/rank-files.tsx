import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILaunch } from '../api';
import type { LaunchRequests, RankFile } from './requests';

const VIEWER = 'https://ui.perfetto.dev';

/** Download links to profiler traces and flight recorder dumps of the ranks. */
export function RankFiles(props: {
  launch: ILaunch;
  requests: LaunchRequests;
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { launch, requests, trans } = props;
  const { traces, dumps } = launch;
  if (traces.length + dumps.length === 0) {
    return null;
  }
  const list = (title: string, kind: RankFile, ranks: readonly number[]): React.JSX.Element => (
    <p>
      {title}:
      {ranks.map(rank => (
        <React.Fragment key={rank}>
          {' '}
          <a href={requests.fileUrl(kind, launch.id, rank)} download>
            {trans.__('rank %1', rank)}
          </a>
        </React.Fragment>
      ))}
    </p>
  );
  return (
    <details className="jp-Gipfel-launch-files">
      <summary>{trans.__('Files of ranks')}</summary>
      {traces.length > 0 && list(trans.__('Profiler traces'), 'trace', traces)}
      {traces.length > 0 && (
        <p>
          {trans.__('A trace opens in')}{' '}
          <a href={VIEWER} target="_blank" rel="noopener noreferrer">
            Perfetto
          </a>
          {trans.__(': Open trace file there; it stays in the browser.')}
        </p>
      )}
      {dumps.length > 0 && list(trans.__('Flight recorder’s dumps'), 'dump', dumps)}
    </details>
  );
}
