import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IProblem } from '../api';
import { Notice } from '../common/notice';
import type { JobModel } from './model';

/** What a tab shows in place of or above its content: an error, contradictions of the run, or that it is loading. */
export function States(props: { model: JobModel; trans: TranslationBundle }): React.JSX.Element {
  const { model, trans } = props;
  return (
    <>
      {model.error !== '' && (
        <Notice error shape="✗" text={model.error}>
          <button className="jp-Gipfel-button" onClick={() => void model.refresh()}>
            {trans.__('Try again')}
          </button>
        </Notice>
      )}
      {model.job?.problems.map((problem: IProblem) => (
        <Notice key={problem.text} shape="⚠" text={problem.text}>
          {problem.fix !== '' && <p>{problem.fix}</p>}
        </Notice>
      ))}
      {model.job === null && model.error === '' && (
        <p className="jp-Gipfel-pad" role="status">
          ◐ {trans.__('Reading the run…')}
        </p>
      )}
    </>
  );
}
