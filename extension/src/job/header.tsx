import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IRunName } from '../api';
import { formatTimeOfDay, zoneName } from '../common/clock';
import { requestJson } from '../common/request';
import { runLabel } from '../common/run-label';
import { spanOf, TimeRange } from '../common/time-range';
import type { JobModel } from './model';
import { Help } from '../views/term';
import { ROLE } from '../views/terms';

interface IProps {
  readonly model: JobModel;
  readonly trans: TranslationBundle;
}

/** Run, launch, roles and time range of the page. */
export function Header(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  return (
    <header className="jp-Gipfel-job-header">
      <RunChoice {...props} />
      <RoleField
        label={trans.__('Roles')}
        hint={roleHint(model, trans)}
        value={model.selection.expression}
        onValue={value => {
          if (isLayout(value)) {
            model.selection.setLayout(value.replace(/\s/g, ''));
          } else {
            model.selection.setExpression(value);
          }
        }}
      />
      <Help term={ROLE} trans={trans} />
      <Layout {...props} />
      <Selected {...props} />
      <Range {...props} />
      <Freshness {...props} />
    </header>
  );
}

/** Return whether a text has sizes of several axes, such as `pp=2,dp=4`, which no selection of ranks has. */
export function isLayout(text: string): boolean {
  return /^[a-z]\w{0,15}=\d{1,6}(\s*,\s*[a-z]\w{0,15}=\d{1,6})+$/.test(text);
}

/** The parallel layout that was typed, and a button that forgets it. */
function Layout(props: IProps): React.JSX.Element | null {
  const { model, trans } = props;
  const { selection } = model;
  return selection.layout === '' ? null : (
    <span className="jp-Gipfel-job-selected">
      {trans.__('Layout')} <code>{shortened(selection.layout)}</code>{' '}
      <button
        className="jp-Gipfel-button jp-mod-small"
        onClick={() => {
          selection.setLayout('');
        }}
      >
        {trans.__('Forget the layout')}
      </button>
    </span>
  );
}

function RunChoice(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { selection } = model;
  const [runs, setRuns] = React.useState<readonly IRunName[]>([]);
  const { settings } = model.requests;
  const readRuns = React.useCallback((): void => {
    void requestJson<{ runs: readonly IRunName[] }>(settings, 'runs').then(
      answer => {
        setRuns(answer.runs);
      },
      () => undefined
    );
  }, [settings]);
  const { run } = selection;
  React.useEffect(() => {
    // A link may have selected a run, whose name is in the list.
    if (run !== '') {
      readRuns();
    }
  }, [run, readRuns]);
  const others = runs.filter(each => !each.current);
  return (
    <>
      <label>
        <span>{trans.__('Run')}</span>
        <select
          className="jp-Gipfel-field"
          name="run"
          value={run}
          onFocus={readRuns}
          onChange={event => {
            selection.show(event.target.value);
          }}
        >
          <option value="">{trans.__('this server')}</option>
          {run !== '' && !others.some(each => each.run === run) && <option value={run}>{run}</option>}
          {others.map(each => (
            <option key={each.run} value={each.run}>
              {runLabel(each)}
            </option>
          ))}
        </select>
      </label>
      <LaunchChoice {...props} />
    </>
  );
}

function LaunchChoice(props: IProps): React.JSX.Element | null {
  const { model, trans } = props;
  const { selection, job } = model;
  return job === null || job.launches.length < 2 ? null : (
    <label>
      <span>{trans.__('Launch')}</span>
      <select
        className="jp-Gipfel-field"
        name="launch"
        value={job.launch}
        onChange={event => {
          selection.show(selection.run, event.target.value);
        }}
      >
        {job.launches.map(name => (
          <option key={name} value={name}>
            #{name.replace(/^.*\//, '')}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Return an expression of this job's own axes as an example. */
function roleHint(model: JobModel, trans: TranslationBundle): string {
  const axes = Object.keys(model.job?.axes ?? {});
  const terms = axes.slice(0, 2).map(axis => `${axis}=0`);
  return terms.length > 0 ? trans.__('such as %1', terms.join(' & ')) : trans.__('such as rank=0-7');
}

/** A field that is applied with Enter or when it loses the focus. */
export function RoleField(props: {
  label: string;
  hint: string;
  value: string;
  onValue: (value: string) => void;
}): React.JSX.Element {
  const { label, hint, value, onValue } = props;
  const [typed, setTyped] = React.useState<string | null>(null);
  const apply = (): void => {
    if (typed !== null && typed !== value) {
      onValue(typed.trim());
    }
    setTyped(null);
  };
  return (
    <label>
      <span>{label}</span>
      <input
        className="jp-Gipfel-field"
        type="search"
        name="roles"
        size={18}
        spellCheck={false}
        placeholder={hint}
        value={typed ?? value}
        onChange={event => {
          setTyped(event.target.value);
          if (event.target.value === '' && value !== '') {
            onValue('');
            setTyped(null);
          }
        }}
        onBlur={apply}
        onKeyDown={event => {
          if (event.key === 'Enter') {
            apply();
          }
          event.stopPropagation();
        }}
      />
    </label>
  );
}

/** How many ranks are selected, and what was clicked. */
function Selected(props: IProps): React.JSX.Element | null {
  const { model, trans } = props;
  const { selection } = model;
  if (!selection.some) {
    return null;
  }
  const count = selection.ranks.length;
  return (
    <span className="jp-Gipfel-job-selected" role="status">
      <span aria-hidden="true">■</span> {selection.pick && <code>{shortened(selection.pickExpression)}</code>}{' '}
      {trans._n('%1 rank selected', '%1 ranks selected', count)}{' '}
      <button
        className="jp-Gipfel-button jp-mod-small"
        onClick={() => {
          selection.clear();
        }}
      >
        {selection.pick ? trans.__('Back to roles') : trans.__('Clear')}
      </button>
    </span>
  );
}

function shortened(text: string): string {
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}

function Range(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { selection } = model;
  return (
    <TimeRange
      lastS={selection.lastS}
      span={selection.span}
      drawn={() => spanOf(model.figure('bands')) ?? spanOf(model.figure('metrics'))}
      back={selection.lastS === null ? trans.__('Whole run') : trans.__('Newest')}
      trans={trans}
      onLast={seconds => {
        selection.setLast(seconds);
      }}
      onSpan={span => {
        selection.setSpan(span);
      }}
    />
  );
}

/** How fresh the page is, by the clock of the reader. */
function Freshness(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { receivedMs } = model;
  const time = `${formatTimeOfDay(receivedMs)} ${zoneName(receivedMs)}`;
  const text =
    receivedMs === 0
      ? ''
      : model.stale
        ? trans.__('⚠ stale: last answer %1', time)
        : model.job?.growing
          ? trans.__('● live, %1', time)
          : trans.__('○ nothing is recorded now');
  return <span className="jp-Gipfel-job-fresh">{text}</span>;
}
