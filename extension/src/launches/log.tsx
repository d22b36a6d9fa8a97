import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILaunch } from '../api';
import { formatTimeOfDay, zoneName } from '../common/clock';
import type { LaunchesModel } from './model';
import type { LogLine } from './requests';

const COLOURS = 8;
const MAX_RANKS = 1024;
const NEAR_END_PX = 8;

/** The log of a launch, filtered by rank and errors; it follows the newest line. */
export function LaunchLog(props: {
  launch: ILaunch;
  model: LaunchesModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { launch, model, trans } = props;
  const [errors, setErrors] = React.useState(false);
  const [follow, setFollow] = React.useState(true);
  const newest = model.lines[model.lines.length - 1];
  const node = React.useRef<HTMLDivElement>(null);
  const shown = errors ? model.lines.filter(line => line[3]) : model.lines;
  React.useLayoutEffect(() => {
    if (follow && node.current) {
      node.current.scrollTop = node.current.scrollHeight;
    }
  }, [follow, newest]);
  return (
    <div className="jp-Gipfel-launch-log">
      <div className="jp-Gipfel-launch-filters">
        <RankChoice launch={launch} model={model} trans={trans} />
        <Check text={trans.__('errors only')} checked={errors} onChange={setErrors} />
        <Check text={trans.__('follow')} checked={follow} onChange={setFollow} />
        {typeof newest?.[2] === 'number' && (
          <small title={trans.__('Time zone of the log')}>{zoneName(newest[2])}</small>
        )}
      </div>
      <FlightRecorderLines lines={model.flight} trans={trans} />
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
        {shown.map((line, index) => (
          <Line key={index} line={line} />
        ))}
      </div>
    </div>
  );
}

function FlightRecorderLines(props: {
  lines: readonly string[];
  trans: TranslationBundle;
}): React.JSX.Element | null {
  const { lines, trans } = props;
  return lines.length === 0 ? null : (
    <ul aria-label={trans.__('torch’s flight recorder')}>
      {lines.map((line, index) => (
        <li key={index}>{line}</li>
      ))}
    </ul>
  );
}

function RankChoice(props: {
  launch: ILaunch;
  model: LaunchesModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { launch, model, trans } = props;
  return (
    <select
      aria-label={trans.__('Rank filter')}
      value={model.rank ?? ''}
      onChange={event => {
        const { value } = event.target;
        model.openLog(launch.id, value === '' ? null : Number(value));
      }}
    >
      <option value="">{trans.__('all ranks')}</option>
      {Array.from({ length: Math.min(launch.ranks, MAX_RANKS) }, (_, rank) => (
        <option key={rank} value={rank}>
          {trans.__('only rank %1', rank)}
        </option>
      ))}
    </select>
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
          props.onChange(event.target.checked);
        }}
      />
      {props.text}
    </label>
  );
}
