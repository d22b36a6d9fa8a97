import * as React from 'react';

import { Help } from '../term';
import { PREFLIGHT } from '../terms';
import type { ITranslation } from '../translation';
import type { ICheckOutcome, ILaunchDetails } from './document';

const MARKS: Readonly<Record<string, string>> = { pass: '✓', warn: '⚠', fail: '✗', unknown: '?' };

/** The phases of a launch up to its end; without vetting if there is none. */
export function Phases(props: { phase: string; vetting: boolean; trans: ITranslation }): React.JSX.Element {
  const { phase, vetting, trans } = props;
  const phases: readonly (readonly [string, string])[] = [
    ['preflight', trans.__('preflight')],
    ['queued', trans.__('queued')],
    ['vetting', trans.__('vetting')],
    ['running', trans.__('running')],
    ['ended', trans.__('ended')]
  ];
  const reached = phases.findIndex(([id]) => id === phase);
  return (
    <ol className="jp-Gipfel-launch-phases" aria-label={trans.__('Phases')}>
      {phases.map(
        ([id, text], index) =>
          (id !== 'vetting' || vetting) && (
            <li key={id} data-reached={index <= reached} aria-current={id === phase ? 'step' : undefined}>
              {text}
              {id === 'preflight' && <Help term={PREFLIGHT} trans={trans} />}
            </li>
          )
      )}
    </ol>
  );
}

/** Pre-flight checks, the exact command, and the traceback of a failed launch. */
export function Details(props: { details: ILaunchDetails; trans: ITranslation }): React.JSX.Element {
  const { details, trans } = props;
  const rank = details.failedRank ?? '?';
  return (
    <>
      {details.preflight.length > 0 && <Checks outcomes={details.preflight} trans={trans} />}
      {details.command && (
        <details>
          <summary>{trans.__('the exact command')}</summary>
          <pre>{details.command}</pre>
        </details>
      )}
      {details.traceback && (
        <details open>
          <summary>{trans.__('traceback of rank %1, the first that failed', rank)}</summary>
          <pre>{details.traceback}</pre>
        </details>
      )}
    </>
  );
}

function Checks(props: { outcomes: readonly ICheckOutcome[]; trans: ITranslation }): React.JSX.Element {
  const { outcomes, trans } = props;
  return (
    <ul className="jp-Gipfel-launch-checks" aria-label={trans.__('Pre-flight checks')}>
      {outcomes.map(({ check, verdict, message, fix }) => (
        <li key={check + message} data-verdict={verdict} title={check}>
          <span aria-hidden="true">{MARKS[verdict] ?? '·'}</span> {message}
          {verdict === 'pass' ? '' : ` ${fix}`}
        </li>
      ))}
    </ul>
  );
}
