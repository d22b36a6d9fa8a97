import * as React from 'react';

import { formatTimeOfDay, zoneName } from '../../common/clock';
import { Help } from '../term';
import { FLIGHT_RECORDER, RANK } from '../terms';
import type { ITranslation } from '../translation';
import { filterLines, type ILogLines, type LogLine } from './log-lines';

const COLOURS = 8;
const MAX_RANKS = 1024;
const NEAR_END_PX = 8;
/** Keys that scroll the log or choose a rank, and that would select another cell of a notebook. */
const OWN_KEYS = ['ArrowUp', 'ArrowDown', 'PageUp', 'PageDown', 'Home', 'End', ' '];

/** The end of a launch's log, and the rank that is chosen. */
export interface ILaunchLog {
  readonly end: ILogLines;
  /** The rank whose lines are shown; null for all. */
  readonly rank: number | null;
  readonly chooseRank: (rank: number | null) => void;
  /** The findings from torch's flight recorder, one string per line. */
  readonly flight: readonly string[];
}

interface ILogProps {
  readonly ranks: number;
  readonly log: ILaunchLog;
  readonly trans: ITranslation;
}

/** The log of a launch, filtered by rank and errors; it follows the newest line. */
export function LaunchLog(props: ILogProps): React.JSX.Element {
  const { log, trans } = props;
  const [errors, setErrors] = React.useState(false);
  const [follow, setFollow] = React.useState(true);
  const node = React.useRef<HTMLDivElement>(null);
  const shown = filterLines(log.end, log.rank, errors);
  const newest = shown.at(-1)?.number;
  React.useLayoutEffect(() => {
    if (follow && node.current) {
      node.current.scrollTop = node.current.scrollHeight;
    }
  }, [follow, newest]);
  return (
    <div
      className="jp-Gipfel-launch-log"
      onKeyDown={event => {
        if (OWN_KEYS.includes(event.key)) {
          event.stopPropagation();
        }
      }}
    >
      <div className="jp-Gipfel-launch-filters">
        <RankChoice {...props} />
        <Check text={trans.__('errors only')} checked={errors} onChange={setErrors} />
        <Check text={trans.__('follow')} checked={follow} onChange={setFollow} />
        <LineCount count={shown.length} lines={log.end.lines} trans={trans} />
      </div>
      <FlightRecorderLines lines={log.flight} trans={trans} />
      <div
        ref={node}
        className="jp-Gipfel-launch-lines"
        role="log"
        aria-live="off"
        aria-label={trans.__('Log of the ranks')}
        tabIndex={0}
        onScroll={event => {
          // Scrolling up stops following; scrolling to the end resumes it.
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
          setFollow(scrollHeight - scrollTop - clientHeight < NEAR_END_PX);
        }}
      >
        {shown.length === 0 && (
          <p>{errors ? trans.__('No lines about errors.') : trans.__('No lines yet.')}</p>
        )}
        {shown.map(({ number, line }) => (
          <Line key={number} line={line} />
        ))}
      </div>
    </div>
  );
}

/** How many lines are shown, and the time zone of their times. */
function LineCount(props: {
  count: number;
  lines: readonly LogLine[];
  trans: ITranslation;
}): React.JSX.Element | null {
  const { count, lines, trans } = props;
  const timeMs = lines.find(line => line[2] !== null)?.[2];
  return count === 0 ? null : (
    <>
      <small>{trans._n('%1 line', '%1 lines', count)}</small>
      {typeof timeMs === 'number' && (
        <small title={trans.__('Time zone of the log')}>{zoneName(timeMs)}</small>
      )}
    </>
  );
}

function FlightRecorderLines(props: {
  lines: readonly string[];
  trans: ITranslation;
}): React.JSX.Element | null {
  const { lines, trans } = props;
  return lines.length === 0 ? null : (
    <details open>
      <summary>
        {trans.__('torch’s flight recorder')} <Help term={FLIGHT_RECORDER} trans={trans} />
      </summary>
      <ul>
        {lines.map((line, index) => (
          <li key={index}>{line}</li>
        ))}
      </ul>
    </details>
  );
}

function RankChoice({ ranks, log, trans }: ILogProps): React.JSX.Element {
  return (
    <span>
      <select
        className="jp-Gipfel-field"
        aria-label={trans.__('Rank filter')}
        value={log.rank ?? ''}
        onChange={event => {
          const { value } = event.currentTarget;
          log.chooseRank(value === '' ? null : Number(value));
        }}
      >
        <option value="">{trans.__('all ranks')}</option>
        {Array.from({ length: Math.min(ranks, MAX_RANKS) }, (_, rank) => (
          <option key={rank} value={rank}>
            {trans.__('only rank %1', rank)}
          </option>
        ))}
      </select>
      <Help term={RANK} trans={trans} />
    </span>
  );
}

const Line = React.memo(function Line(props: { line: LogLine }): React.JSX.Element {
  const [rank, text, timeMs, error] = props.line;
  return (
    <div className={error ? 'jp-mod-error' : undefined}>
      <time>{timeMs === null ? '' : formatTimeOfDay(timeMs)}</time>
      <b data-colour={rank % COLOURS}>r{rank}</b>
      {text}
    </div>
  );
});

function Check(props: {
  text: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
}): React.JSX.Element {
  return (
    <label>
      <input
        type="checkbox"
        checked={props.checked}
        onChange={event => {
          props.onChange(event.currentTarget.checked);
        }}
      />
      {props.text}
    </label>
  );
}
