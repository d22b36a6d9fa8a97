import * as React from 'react';

import type { IScore } from '../../api';
import { Help } from '../term';
import { BOTTLENECK, CONFIDENCE, LOSS, LOSSES, SCORE } from '../terms';
import type { ITranslation } from '../translation';

/** Words for scores from these points on, the highest first. */
const GRADES: readonly (readonly [number, (trans: ITranslation) => string])[] = [
  [80, trans => trans.__('very good')],
  [60, trans => trans.__('good')],
  [40, trans => trans.__('fair')],
  [20, trans => trans.__('low')]
];
/** Minimum of the largest loss, in points, with which it is named first. */
const MIN_LOSS = 5;
/** Minimum difference of a score's bounds, in points, with which they are shown. */
const MIN_RANGE = 5;
/** Seconds of samples that a live score needs before it represents the work rather than the moment. */
const EARLY_S = 5;
/** Seconds for which a cause must last before the server shows advice on it. */
const ADVICE_S = 60;

interface IBreakdownProps {
  readonly points: number;
  readonly lost: readonly [string, number][];
  readonly trans: ITranslation;
}

/**
 * The score and its losses, together 100, with the loss breakdown.
 *
 * `live` is the number of GPUs that are being recorded now; leave it out for an ended run.
 */
export function Score(props: { score: IScore; live?: number; trans: ITranslation }): React.JSX.Element {
  const { score, live = 0, trans } = props;
  const measuredS = measuredSeconds(score);
  if (live > 0 && (score.gpus.length === 0 || measuredS < EARLY_S)) {
    return <Measuring gpus={live} trans={trans} />;
  }
  if (score.integer_points === null) {
    return (
      <div className="jp-Gipfel-score">
        <p>
          {trans.__('No score yet: no GPU metric that could be scored was recorded.')} {score.notes[0] ?? ''}
        </p>
      </div>
    );
  }
  const waits = live > 0 && measuredS < ADVICE_S + EARLY_S;
  const { score: points = 0, ...losses } = score.integer_points;
  const lost = Object.entries(losses)
    .filter(([, each]) => each > 0)
    .sort((a, b) => b[1] - a[1]);
  return (
    <div className="jp-Gipfel-score">
      <div className="jp-Gipfel-scoreLine">
        <strong className="jp-Gipfel-points">{points}</strong>
        <span className="jp-Gipfel-grade">{trans.__('of 100 · %1', gradeOf(points, trans))}</span>
        <Help term={SCORE} trans={trans} />
        <Bar points={points} lost={lost} label={trans.__('%1 of 100 points', points)} />
        <span>
          {bottleneckText(score, trans)} <Help term={BOTTLENECK} trans={trans} />
        </span>
      </div>
      <LargestLoss score={score} lost={lost} waits={waits} trans={trans} />
      <Losses points={points} lost={lost} trans={trans} />
      <Bounds score={score} trans={trans} />
      {typeof score.means_s === 'number' && (
        <p className="jp-Gipfel-small">
          {trans.__('Scored by means over %1 s; a shorter time is scored by its samples.', score.means_s)}
        </p>
      )}
      {score.energy && <p className="jp-Gipfel-small">{trans.__('Energy in this time: %1', score.energy)}</p>}
      <details className="jp-Gipfel-more">
        <summary>{trans.__('Loss breakdown')}</summary>
        <LossBreakdown points={points} lost={lost} trans={trans} />
        <ScoreDetails score={score} trans={trans} />
      </details>
    </div>
  );
}

/** Text in the first seconds of a live view: what will be shown. */
function Measuring(props: { gpus: number; trans: ITranslation }): React.JSX.Element {
  const { gpus, trans } = props;
  return (
    <div className="jp-Gipfel-score" role="status">
      <p className="jp-Gipfel-largest">
        ◐ <strong>{trans._n('Measuring %1 GPU.', 'Measuring %1 GPUs.', gpus)}</strong>{' '}
        {trans.__('A score from 0 to 100 follows in a few seconds.')}
      </p>
    </div>
  );
}

/** The losses in one line, the largest first. */
function Losses(props: IBreakdownProps): React.JSX.Element {
  const { points, lost, trans } = props;
  const listed = lost.map(([name, each]) => `${name.replace('_', '-')}\u00a0${each}`).join(' · ');
  return (
    <p className="jp-Gipfel-lost">
      {lost.length > 0
        ? trans._n('%1 point lost: %2', '%1 points lost: %2', 100 - points, listed)
        : trans.__('Nothing is lost.')}{' '}
      <Help term={LOSS} trans={trans} />
    </p>
  );
}

function gradeOf(points: number, trans: ITranslation): string {
  return GRADES.find(([from]) => points >= from)?.[1](trans) ?? trans.__('very low');
}

function measuredSeconds(score: IScore): number {
  const { first_ns: first, last_ns: last } = score;
  return typeof first === 'number' && typeof last === 'number' ? (last - first) / 1e9 : Infinity;
}

/** The largest loss with its remedy, for readers who stop here; `waits` while advice is still to come. */
function LargestLoss(props: {
  score: IScore;
  lost: readonly [string, number][];
  waits: boolean;
  trans: ITranslation;
}): React.JSX.Element | null {
  const { score, lost, waits, trans } = props;
  const [name, points] = lost[0] ?? ['', 0];
  if (points < MIN_LOSS) {
    return null;
  }
  const remedy = score.advice.find(each => each.loss === name);
  return (
    <p className="jp-Gipfel-largest">
      <strong>{largestText(name, points, trans)}</strong> {remedy?.action ?? remedyText(name, waits, trans)}
    </p>
  );
}

/** What to do about a loss for which there is no advice. */
function remedyText(name: string, waits: boolean, trans: ITranslation): string {
  if (name === 'unexplained') {
    return trans.__('Profile a few steps to see why.');
  }
  return waits
    ? trans.__('Advice follows when this has lasted a minute.')
    : trans.__('No safe remedy is known.');
}

function largestText(name: string, points: number, trans: ITranslation): string {
  return name === 'unexplained'
    ? trans.__('Most is lost for a reason that no recorded metric shows: %1 points.', points)
    : trans.__('Most is lost to %1: %2 points.', name.replace('_', '-'), points);
}

/** The bounds of a score at the interval of the samples. */
function Bounds(props: { score: IScore; trans: ITranslation }): React.JSX.Element | null {
  const { score, trans } = props;
  return score.range && score.range[1] - score.range[0] >= MIN_RANGE ? (
    <p className="jp-Gipfel-small">
      {trans.__(
        'The exact score is between %1 and %2. Sampling more often narrows this range.',
        ...score.range.map(Math.round)
      )}
    </p>
  ) : null;
}

function Bar(props: { points: number; lost: readonly [string, number][]; label: string }): React.JSX.Element {
  return (
    <span className="jp-Gipfel-bar" role="img" aria-label={props.label}>
      <span style={{ width: `${props.points}%`, backgroundColor: colourOf('score') }} />
      {props.lost.map(([name, each]) => (
        <span
          key={name}
          className="jp-Gipfel-barLost"
          data-loss={name}
          title={`${name} ${each}`}
          style={{ width: `${each}%`, backgroundColor: colourOf(name) }}
        />
      ))}
    </span>
  );
}

/** Return the colour of a loss, or of the score, in the palette of figures. */
function colourOf(name: string): string {
  return `var(--gipfel-${name.replace('_', '-')})`;
}

/** Each loss as a step from the score up to 100. */
function LossBreakdown(props: IBreakdownProps): React.JSX.Element {
  const steps: [string, number][] = [['score', props.points], ...props.lost];
  const begins = steps.map((_, index) => steps.slice(0, index).reduce((sum, [, each]) => sum + each, 0));
  return (
    <ol className="jp-Gipfel-steps">
      {steps.map(([name, each], index) => (
        <li key={name}>
          <span className="jp-Gipfel-stepName">
            {name.replace('_', '-')}
            {LOSSES[name] && <Help term={LOSSES[name]} trans={props.trans} />}
          </span>
          <span className="jp-Gipfel-stepRoom">
            <span
              className="jp-Gipfel-barLost"
              data-loss={name}
              style={{
                marginLeft: `${begins[index]}%`,
                width: `${each}%`,
                backgroundColor: colourOf(name)
              }}
            />
          </span>
          <span className="jp-Gipfel-stepPoints">{each}</span>
        </li>
      ))}
    </ol>
  );
}

function ScoreDetails(props: { score: IScore; trans: ITranslation }): React.JSX.Element {
  const { score, trans } = props;
  const parts = [
    trans.__('confidence %1', (score.confidence ?? 0).toFixed(2)),
    typeof score.means_s === 'number'
      ? trans.__('means over %1 s', score.means_s)
      : trans.__('a sample every %1 s', score.interval_s)
  ];
  if (score.spread && score.gpus.length > 1) {
    parts.push(trans.__('GPUs from %1 to %2', ...range(score)));
  }
  const util = mean(score.gpus.map(gpu => gpu.utilization));
  if (util !== null) {
    parts.push(trans.__('plain utilization %1 %', Math.round(100 * util)));
  }
  if (score.startup_s >= 1) {
    parts.push(trans.__('%1 s of start-up', Math.round(score.startup_s)));
  }
  return (
    <>
      <p className="jp-Gipfel-small">
        {parts.join(' · ')} <Help term={CONFIDENCE} trans={trans} />
      </p>
      {score.notes.length > 0 && (
        <ul className="jp-Gipfel-small">
          {score.notes.map(note => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
    </>
  );
}

function range(score: IScore): [number, number] {
  const { worst, gap } = score.spread ?? { worst: 0, gap: 0 };
  return [Math.round(worst), Math.round(worst + gap)];
}

function bottleneckText(score: IScore, trans: ITranslation): string {
  const name = score.bottleneck;
  if (name === null) {
    return trans.__('bottleneck unclear at %1 s samples', score.interval_s);
  }
  const share = score.binding[name];
  return share === undefined || share === null
    ? trans.__('bottleneck: %1', name)
    : trans.__('%1-bound %2 % of the time', name, Math.round(100 * share));
}

function mean(values: readonly (number | null)[]): number | null {
  const known = values.filter(value => value !== null);
  return known.length > 0 ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
