import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobDocument, IJobVerdict } from '../api';
import { formatLocalTime } from '../common/clock';
import type { IJobSelection, IJobState } from '../tokens';
import { Help } from '../views/term';
import { DIAGNOSIS_VERDICT } from '../views/terms';

const SHAPES = ['○', '⚑', '✗'];
const MOST_NAMED = 8;
/** Time before and after a verdict that a zoom to it shows. */
export const AROUND_MS = 60_000;

/** Return the symbol of a verdict; its text says the same. */
export function verdictShape(verdict: IJobVerdict): string {
  return SHAPES[verdict.severity] ?? '⚑';
}

/** Select what a verdict names, and show the time around its beginning. */
export function chooseVerdict(selection: IJobSelection, verdict: IJobVerdict): void {
  const [unit, name] = /^(node|gpu|nic|switch) (\S+)$/.exec(verdict.unit)?.slice(1) ?? [];
  if (verdict.ranks.length > 0) {
    selection.choose('rank', verdict.ranks.map(String));
  } else if (unit !== undefined && name !== undefined) {
    selection.choose(unit as 'node', [name]);
  } else if (verdict.stage !== null) {
    selection.setExpression(`pp=${verdict.stage}`);
  }
}

/** The worst verdict in one sentence, else that nothing stands out. */
export function Headline(props: {
  model: IJobState;
  trans: TranslationBundle;
  onShow: (verdict: IJobVerdict) => void;
}): React.JSX.Element | null {
  const { model, trans, onShow } = props;
  const { job, verdicts } = model;
  if (job === null) {
    return null;
  }
  // Interruptions such as checkpoints are for information: the tab Events lists them.
  const [worst, ...others] = (verdicts?.verdicts ?? []).filter(each => each.source !== 'phases');
  const missing = missingText(job, trans);
  if (job.ranks.length === 0 && job.world_size === null && (worst?.severity ?? 0) === 0) {
    return <NoTraining trans={trans} />;
  }
  // Green only where everything was looked at and nothing was found.
  const found = worst?.severity ?? (verdicts === null ? 'unknown' : 'none');
  return (
    <div className="jp-Gipfel-job-headline" role="status" data-severity={missing ? 2 : found}>
      {verdicts === null && !missing && <p>◐ {trans.__('Looking at the steps of all ranks…')}</p>}
      {missing && <p>✗ {missing}</p>}
      {worst && (
        <p>
          <span aria-hidden="true">{verdictShape(worst)}</span>{' '}
          {worst.since_ms !== null && `${formatLocalTime(worst.since_ms)} `}
          <strong>{worst.title}.</strong> {worst.evidence}{' '}
          <button
            className="jp-Gipfel-button jp-mod-small"
            onClick={() => {
              onShow(worst);
            }}
          >
            {trans.__('Show')}
          </button>
          <Help term={DIAGNOSIS_VERDICT} trans={trans} />
          {others.length > 0 && ` ${trans._n('and %1 more verdict', 'and %1 more verdicts', others.length)}`}
        </p>
      )}
      {verdicts !== null && !worst && !missing && (
        <p>
          ✓ {trans.__('Nothing stands out.')} <Help term={DIAGNOSIS_VERDICT} trans={trans} />
        </p>
      )}
    </div>
  );
}

const LEVELS = { pass: '✓', warn: '⚠', fail: '✗', unknown: '○' } as const;

/** The verdict on the job's image in one line, with a link to its details; nothing before the image was judged. */
export function SecurityLine(props: {
  job: IJobDocument | null;
  trans: TranslationBundle;
  onDetails: () => void;
}): React.JSX.Element | null {
  const { job, trans, onDetails } = props;
  const security = job?.security ?? null;
  return security === null ? null : (
    <p className="jp-Gipfel-small jp-Gipfel-pad jp-Gipfel-security" data-level={security.level}>
      <span aria-hidden="true">{LEVELS[security.level]}</span> {trans.__('Image:')} {security.line}{' '}
      <button
        className="jp-Gipfel-button jp-mod-small"
        aria-label={trans.__('Details of the verdict on the image')}
        onClick={onDetails}
      >
        {trans.__('Details')}
      </button>
    </p>
  );
}

/** The headline of a job in which only notebooks, or nothing, ran. */
function NoTraining({ trans }: { trans: TranslationBundle }): React.JSX.Element {
  return (
    <div className="jp-Gipfel-job-headline" role="status">
      <p>
        ○ <strong>{trans.__('No training has run in this job yet.')}</strong>{' '}
        {trans.__('Its ranks, the pace of their steps and which of them are slow appear here.')}{' '}
        <Help term={DIAGNOSIS_VERDICT} trans={trans} />
      </p>
    </div>
  );
}

/** Return which ranks were never seen; empty if all were. */
export function missingText(job: IJobDocument, trans: TranslationBundle): string {
  const { missing } = job;
  const named = missing.slice(0, MOST_NAMED).join(', ');
  const rest = missing.length > MOST_NAMED ? trans.__(' and %1 more', missing.length - MOST_NAMED) : '';
  return missing.length === 0
    ? ''
    : trans._n(
        'Rank %2 of %3 was never seen.',
        'Ranks %2 of %3 were never seen.',
        missing.length,
        `${named}${rest}`,
        job.world_size ?? missing.length
      );
}
