import * as React from 'react';

import type { IAdvice, IEvidence } from '../../api';
import type { ITimeSpan } from '../figures/plot';
import type { ITranslation } from '../translation';

/** Number of pieces of advice shown before "more" is clicked. */
const FIRST = 3;
const MARGIN = 0.5;

/** Shows a time span, with the evidence of an advice highlighted in it. */
export type ShowEvidence = (span: ITimeSpan, evidence: IEvidence) => void;

/** The advice, each with a button that shows its evidence. */
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
  const shown = all ? advice : advice.slice(0, FIRST);
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('Advice')}>
      {since.map(line => (
        <p key={line} className="jp-Gipfel-small">
          <span aria-hidden="true">↺</span> {line}
        </p>
      ))}
      <ul className="jp-Gipfel-advice">
        {shown.map(each => (
          <Item key={each.rule} advice={each} onShow={onShow} trans={trans} />
        ))}
      </ul>
      {advice.length > FIRST && (
        <button
          className="jp-Gipfel-button jp-mod-small"
          aria-expanded={all}
          onClick={() => {
            setAll(!all);
          }}
        >
          {all ? trans.__('Show fewer') : trans.__('%1 more', advice.length - FIRST)}
        </button>
      )}
    </section>
  );
}

function Item(props: {
  advice: IAdvice;
  onShow: ShowEvidence | undefined;
  trans: ITranslation;
}): React.JSX.Element {
  const { advice, onShow, trans } = props;
  return (
    <li>
      <p>
        <span aria-hidden="true">⚑</span> {advice.sentence} {advice.action}
      </p>
      <p className="jp-Gipfel-small">
        {advice.gain_text} ·{' '}
        <a href={advice.knob.link} target="_blank" rel="noopener noreferrer">
          {advice.knob.name}
        </a>
      </p>
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
