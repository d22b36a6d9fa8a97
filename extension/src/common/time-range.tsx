import { caretLeftIcon, caretRightIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IFigure } from '../api';
import { formatTimeRange, localTimeText, parseUtcMs, utcOffsetMs, zoneName } from './clock';
import type { ITimeSpan } from '../views/figures/plot';
import type { ITranslation } from '../views/translation';

const MINUTE_S = 60;
const SIZE = { tag: 'span', height: '16px', width: '16px' } as const;
/** Value of the select for a range between two chosen times. */
const TIMES = 'times';

interface IProps {
  /** Length of the range in seconds, up to the newest sample; null for the whole run. */
  readonly lastS: number | null;
  /** The two times that were chosen instead of a length; null for a length. */
  readonly span: ITimeSpan | null;
  /** Returns the range that is drawn, the initial value of the two times; null if nothing is drawn. */
  readonly drawn: () => ITimeSpan | null;
  /** Label of the button that returns from the two times to the length. */
  readonly back: string;
  readonly trans: ITranslation;
  readonly onLast: (seconds: number | null) => void;
  readonly onSpan: (span: ITimeSpan | null) => void;
}

/** The time range of a page's figures: the last minutes or hours, the whole run, or two times. */
export function TimeRange(props: IProps): React.JSX.Element {
  const { lastS, span, drawn, trans, onLast, onSpan } = props;
  const [editing, setEditing] = React.useState(false);
  const lengths = lengthsIn(trans);
  const known = lastS === null || lengths.some(([seconds]) => seconds === lastS);
  return (
    <>
      <select
        name="range"
        className="jp-Gipfel-field jp-Gipfel-timeRange"
        aria-label={trans.__('Time range')}
        value={span ? TIMES : String(lastS ?? '')}
        onChange={event => {
          const { value } = event.target;
          if (value !== TIMES) {
            onLast(value === '' ? null : Number(value));
            return;
          }
          const shown = drawn();
          if (shown) {
            setEditing(true);
            onSpan(shown);
          }
        }}
      >
        {!known && <option value={lastS}>{trans.__('%1 s', lastS)}</option>}
        <optgroup label={trans.__('last')}>
          {lengths.map(([seconds, label]) => (
            <option key={seconds} value={seconds}>
              {label}
            </option>
          ))}
        </optgroup>
        <option value="">{trans.__('whole run')}</option>
        <option value={TIMES}>{trans.__('from – to')}</option>
      </select>
      {span && <Times {...props} span={span} editing={editing} onEditing={setEditing} />}
    </>
  );
}

function lengthsIn(trans: ITranslation): readonly (readonly [number, string])[] {
  return [
    [MINUTE_S, trans.__('1 min')],
    [10 * MINUTE_S, trans.__('10 min')],
    [15 * MINUTE_S, trans.__('15 min')],
    [60 * MINUTE_S, trans.__('1 h')],
    [360 * MINUTE_S, trans.__('6 h')],
    [1440 * MINUTE_S, trans.__('24 h')]
  ];
}

interface ITimesProps extends IProps {
  readonly span: ITimeSpan;
  readonly editing: boolean;
  readonly onEditing: (editing: boolean) => void;
}

/** The two times, with buttons to move, widen, change or leave them. */
function Times(props: ITimesProps): React.JSX.Element {
  const { span, back, trans, editing, onEditing, onSpan } = props;
  const length = span.untilMs - span.sinceMs;
  const show = (before: number, after: number) => (): void => {
    onSpan({ sinceMs: span.sinceMs + before * length, untilMs: span.untilMs + after * length });
  };
  return (
    <span className="jp-Gipfel-stretch">
      <button className="jp-Gipfel-icon" aria-label={trans.__('Earlier')} onClick={show(-0.5, -0.5)}>
        <caretLeftIcon.react {...SIZE} />
      </button>
      <button
        className="jp-Gipfel-button jp-mod-small"
        aria-expanded={editing}
        title={trans.__('Change the times')}
        onClick={() => {
          onEditing(!editing);
        }}
      >
        {formatTimeRange(span.sinceMs, span.untilMs)}
      </button>
      <button className="jp-Gipfel-icon" aria-label={trans.__('Later')} onClick={show(0.5, 0.5)}>
        <caretRightIcon.react {...SIZE} />
      </button>
      <button className="jp-Gipfel-button jp-mod-small" onClick={show(-0.5, 0.5)}>
        {trans.__('Zoom out')}
      </button>
      <button
        className="jp-Gipfel-button jp-mod-small"
        onClick={() => {
          onEditing(false);
          onSpan(null);
        }}
      >
        {back}
      </button>
      {editing && <Fields key={`${span.sinceMs} ${span.untilMs}`} {...props} />}
    </span>
  );
}

/** Fields for two times in the reader's time zone; Enter applies them. */
function Fields(props: ITimesProps): React.JSX.Element {
  const { span, trans, onSpan } = props;
  const [since, setSince] = React.useState(fieldText(span.sinceMs));
  const [until, setUntil] = React.useState(fieldText(span.untilMs));
  const typed = { sinceMs: fieldMs(since), untilMs: fieldMs(until) };
  const valid = typed.sinceMs < typed.untilMs;
  const fields = [
    [trans.__('from'), since, setSince],
    [trans.__('to'), until, setUntil]
  ] as const;
  return (
    <form
      className="jp-Gipfel-times"
      data-lm-suppress-shortcuts="true"
      onSubmit={event => {
        event.preventDefault();
        if (valid) {
          onSpan(typed);
        }
      }}
    >
      {fields.map(([label, value, change]) => (
        <label key={label}>
          <span>{label}</span>
          <input
            className="jp-Gipfel-field"
            type="datetime-local"
            step={1}
            required
            value={value}
            onChange={event => {
              change(event.target.value);
            }}
          />
        </label>
      ))}
      <span>{zoneName(span.untilMs)}</span>
      <button className="jp-Gipfel-button jp-mod-small" type="submit" disabled={!valid}>
        {trans.__('Show')}
      </button>
      {!valid && <span role="alert">{trans.__('“From” must be before “to”.')}</span>}
    </form>
  );
}

/** Return a time as the value of a field, in the reader's time zone, to the second. */
export function fieldText(timeMs: number): string {
  return localTimeText(timeMs, utcOffsetMs(timeMs)).slice(0, 19);
}

/** Return the UTC milliseconds of a field's text; NaN if it is not a time. */
export function fieldMs(text: string): number {
  const asUtc = parseUtcMs(text, 0);
  // Near a change to or from daylight saving time, the offset depends on the time itself: compute it twice.
  return asUtc - utcOffsetMs(asUtc - utcOffsetMs(asUtc));
}

/** Return the time axis of a figure; null without one. */
export function spanOf(figure: IFigure | null): ITimeSpan | null {
  const { range, type } = (figure?.layout.xaxis ?? {}) as {
    range?: readonly (number | string)[];
    type?: string;
  };
  const [sinceMs, untilMs] = (range ?? []).map(end => parseUtcMs(end, 0));
  return type === 'date' && sinceMs !== undefined && untilMs !== undefined ? { sinceMs, untilMs } : null;
}
