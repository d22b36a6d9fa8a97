import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatTimeOfDay, zoneName } from '../common/clock';
import { eventRows, type IEventRow } from './event-rows';
import type { JobModel } from './model';
import type { JobSelection } from './selection';
import { States } from './states';
import { AROUND_MS, chooseVerdict } from './verdicts';

interface IProps {
  readonly model: JobModel;
  readonly trans: TranslationBundle;
}

const SHAPES = ['○', '⚑', '✗'];
const MOST_SHOWN = 300;

/** Events and verdicts of the run and its launches, the newest first; a click zooms all plots to one. */
export function Events(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { job, verdicts } = model;
  const { kind } = model.selection.view;
  React.useEffect(() => {
    model.setWanted(null);
  }, [model]);
  const rows = React.useMemo(() => eventRows(job, verdicts), [job, verdicts]);
  const kinds = [...new Set([...rows.map(each => each.kind), ...(kind === '' ? [] : [kind])])].sort();
  const shown = rows.filter(each => kind === '' || each.kind === kind);
  return (
    <>
      <States model={model} trans={trans} />
      {(kinds.length > 1 || kind !== '') && (
        <KindChoice
          kinds={kinds}
          kind={kind}
          onKind={chosen => {
            model.selection.setView({ kind: chosen });
          }}
          trans={trans}
        />
      )}
      {verdicts === null && job !== null && (
        <p className="jp-Gipfel-pad">◐ {trans.__('Looking at the steps of all ranks…')}</p>
      )}
      {job !== null && rows.length === 0 && (
        <p className="jp-Gipfel-pad">{trans.__('Nothing has happened that is worth an event.')}</p>
      )}
      <ul className="jp-Gipfel-job-events">
        {shown.slice(0, MOST_SHOWN).map(row => (
          <Row key={row.key} row={row} {...props} />
        ))}
      </ul>
      {verdicts?.notes.map(note => (
        <p key={note} className="jp-Gipfel-small jp-Gipfel-pad">
          {note}
        </p>
      ))}
    </>
  );
}

function KindChoice(props: {
  kinds: readonly string[];
  kind: string;
  onKind: (kind: string) => void;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { kinds, kind, onKind, trans } = props;
  return (
    <label className="jp-Gipfel-pad">
      {trans.__('Kind')}{' '}
      <select
        className="jp-Gipfel-field"
        name="kind"
        value={kind}
        onChange={event => {
          onKind(event.target.value);
        }}
      >
        <option value="">{trans.__('all')}</option>
        {kinds.map(each => (
          <option key={each} value={each}>
            {each.replace(/_/g, ' ')}
          </option>
        ))}
      </select>
    </label>
  );
}

function Row(props: IProps & { row: IEventRow }): React.JSX.Element {
  const { model, trans, row } = props;
  return (
    <li data-kind={row.kind} data-severity={row.severity}>
      <button
        className="jp-Gipfel-link"
        title={trans.__('Zoom all plots to this, and select what it names')}
        onClick={() => {
          chooseEvent(model.selection, row);
        }}
      >
        {row.timeMs === null ? (
          trans.__('whole run')
        ) : (
          <time dateTime={new Date(row.timeMs).toISOString()}>
            {formatTimeOfDay(row.timeMs)} {zoneName(row.timeMs)}
          </time>
        )}
      </button>
      <span>
        <span aria-hidden="true">{SHAPES[row.severity] ?? '⚑'}</span> <b>{row.kind.replace(/_/g, ' ')}</b>{' '}
        {row.text}
      </span>
    </li>
  );
}

/** Select what an event names, and show the time around it. */
export function chooseEvent(selection: JobSelection, row: IEventRow): void {
  if (row.verdict) {
    chooseVerdict(selection, row.verdict);
  } else if (row.event?.device) {
    selection.choose('gpu', [row.event.device]);
  } else if (row.event?.node) {
    selection.choose('node', [row.event.node]);
  }
  if (row.timeMs !== null) {
    selection.setSpan({ sinceMs: row.timeMs - AROUND_MS, untilMs: row.timeMs + AROUND_MS });
  }
}
