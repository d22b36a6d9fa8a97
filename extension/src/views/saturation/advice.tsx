import * as React from 'react';

import type { IAdvice, IEvidence } from '../../api';
import type { ITimeSpan } from '../figures/plot';
import type { ITranslation } from '../translation';

/** Smallest number of items shown before "more" is clicked. */
const FIRST = 3;
/** Points from which a loss is never hidden behind "more". */
const MIN_LOSS = 5;
const MARGIN = 0.5;

/** Shows a time span, with the evidence of an advice highlighted in it. */
export type ShowEvidence = (span: ITimeSpan, evidence: IEvidence) => void;

/** One item for each loss, the largest first, with its remedies and a button that shows its evidence. */
export function AdviceList(props: {
  advice: readonly IAdvice[];
  since: readonly string[];
  /** Without it, there is no button that shows the evidence. */
  onShow?: ShowEvidence | undefined;
  trans: ITranslation;
}): React.JSX.Element | null {
  const { advice, since, onShow, trans } = props;
  const [all, setAll] = React.useState(false);
  if (advice.length === 0 && since.length === 0) {
    return null;
  }
  const items = grouped(advice);
  const large = items.filter(([first]) => Math.round(first.points ?? 0) >= MIN_LOSS).length;
  const few = Math.max(FIRST, large);
  const shown = all ? items : items.slice(0, few);
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('Advice')}>
      {since.map(line => (
        <p key={line} className="jp-Gipfel-small">
          <span aria-hidden="true">↺</span> {line}
        </p>
      ))}
      <ul className="jp-Gipfel-advice">
        {shown.map(([first, ...others]) => (
          <Item key={first.rule} advice={first} others={others} onShow={onShow} trans={trans} />
        ))}
      </ul>
      {items.length > few && (
        <button
          className="jp-Gipfel-button jp-mod-small"
          aria-expanded={all}
          onClick={() => {
            setAll(!all);
          }}
        >
          {all ? trans.__('Show fewer') : trans.__('%1 more', items.length - few)}
        </button>
      )}
    </section>
  );
}

/** Return the advice with the alternatives that follow it. */
function grouped(advice: readonly IAdvice[]): [IAdvice, ...IAdvice[]][] {
  const items: [IAdvice, ...IAdvice[]][] = [];
  for (const each of advice) {
    const last = items.at(-1);
    if (each.alternative && last) {
      last.push(each);
    } else {
      items.push([each]);
    }
  }
  return items;
}

function Item(props: {
  advice: IAdvice;
  others: readonly IAdvice[];
  onShow: ShowEvidence | undefined;
  trans: ITranslation;
}): React.JSX.Element {
  const { advice, others, onShow, trans } = props;
  return (
    <li>
      <p>
        <span aria-hidden="true">⚑</span> {advice.sentence} {advice.action}
      </p>
      <Gain advice={advice} />
      {others.map(each => (
        <React.Fragment key={each.rule}>
          <p>{trans.__('Or: %1', each.action)}</p>
          <Gain advice={each} />
        </React.Fragment>
      ))}
      {onShow && (
        <button
          className="jp-Gipfel-button jp-mod-small"
          onClick={() => {
            show(advice, onShow);
          }}
        >
          {trans.__('Show')}
          <span className="jp-Gipfel-hidden"> {trans.__('the evidence on the plots')}</span>
        </button>
      )}
    </li>
  );
}

/** The gain that is possible, and the page of the setting. */
function Gain({ advice }: { advice: IAdvice }): React.JSX.Element {
  return (
    <p className="jp-Gipfel-small">
      {advice.gain_text} ·{' '}
      <a href={advice.knob.link} target="_blank" rel="noopener noreferrer">
        {advice.knob.name}
      </a>
    </p>
  );
}

/** Zoom to the evidence, with some time before and after it. */
function show(advice: IAdvice, onShow: ShowEvidence): void {
  const evidence = advice.evidence[0];
  if (!evidence) {
    return;
  }
  const [since, until] = [evidence.start_ns / 1e6, evidence.end_ns / 1e6];
  const around = Math.max(10_000, MARGIN * (until - since));
  onShow({ sinceMs: since - around, untilMs: until + around }, evidence);
}
