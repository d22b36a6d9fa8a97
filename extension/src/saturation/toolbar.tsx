import type { TranslationBundle } from '@jupyterlab/translation';
import { caretLeftIcon, caretRightIcon, downloadIcon, pauseIcon, runIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IRunName } from '../api';
import { formatTimeRange } from '../common/clock';
import type { ITimeSpan } from '../views/figures/plot';
import type { SaturationModel } from './model';

const SIZE = { tag: 'span', height: '16px', width: '16px' } as const;

const WINDOWS: readonly (readonly [number, string])[] = [
  [60, '1 min'],
  [600, '10 min'],
  [3600, '1 h'],
  [21_600, '6 h'],
  [86_400, '24 h']
];

interface IToolbarProps {
  readonly model: SaturationModel;
  readonly runs: readonly IRunName[];
  readonly comparing: boolean;
  readonly trans: TranslationBundle;
  readonly onRuns: () => void;
  readonly onCompare: () => void;
}

/** Controls of run, time span, pause, download and comparison. */
export function Toolbar(props: IToolbarProps): React.JSX.Element {
  const { model, trans } = props;
  return (
    <div className="jp-Gipfel-toolbar" role="toolbar" aria-label={trans.__('View controls')}>
      <RunPicker {...props} />
      {model.selection.runName === '' && <WindowPicker {...props} />}
      {model.selection.runName === '' && (
        <button
          className="jp-Gipfel-icon"
          aria-pressed={model.paused}
          title={model.paused ? trans.__('Resume') : trans.__('Pause')}
          aria-label={model.paused ? trans.__('Resume') : trans.__('Pause')}
          onClick={() => {
            model.pause(!model.paused);
          }}
        >
          {model.paused ? <runIcon.react {...SIZE} /> : <pauseIcon.react {...SIZE} />}
        </button>
      )}
      <SaveAs {...props} />
      <button
        className="jp-Gipfel-button jp-mod-small"
        title={trans.__('Compare with another run')}
        aria-pressed={props.comparing}
        onClick={() => {
          props.onCompare();
        }}
      >
        {trans.__('Compare')}
      </button>
      {model.selection.timeSpan && (
        <TimeSpanControls span={model.selection.timeSpan} model={model} trans={trans} />
      )}
    </div>
  );
}

function RunPicker(props: IToolbarProps): React.JSX.Element {
  const { model, runs, trans } = props;
  return (
    <select
      className="jp-Gipfel-runPicker"
      aria-label={trans.__('Run')}
      value={model.selection.runName}
      onFocus={props.onRuns}
      onChange={event => {
        model.selection.setRun(event.target.value);
      }}
    >
      <option value="">{trans.__('this run')}</option>
      {runs
        .filter(run => !run.current)
        .map(run => (
          <option key={run.run} value={run.run}>
            {runLabel(run)}
          </option>
        ))}
    </select>
  );
}

function WindowPicker(props: IToolbarProps): React.JSX.Element {
  const { model, trans } = props;
  const known = WINDOWS.some(([seconds]) => seconds === model.selection.windowS);
  return (
    <select
      aria-label={trans.__('Length of the time window')}
      value={model.selection.windowS}
      onChange={event => {
        model.selection.setWindow(Number(event.target.value));
      }}
    >
      {!known && <option value={model.selection.windowS}>{trans.__('%1 s', model.selection.windowS)}</option>}
      {WINDOWS.map(([seconds, label]) => (
        <option key={seconds} value={seconds}>
          {label}
        </option>
      ))}
    </select>
  );
}

/** The time span after a zoom, with buttons to move, widen or leave it. */
function TimeSpanControls(props: {
  span: ITimeSpan;
  model: SaturationModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { span, model, trans } = props;
  const width = span.untilMs - span.sinceMs;
  const show = (before: number, after: number) => (): void => {
    model.selection.setTimeSpan({
      sinceMs: span.sinceMs + before * width,
      untilMs: span.untilMs + after * width
    });
  };
  const back = (): void => {
    model.selection.clearTimeSpan();
  };
  return (
    <span className="jp-Gipfel-stretch">
      <button className="jp-Gipfel-icon" aria-label={trans.__('Earlier')} onClick={show(-0.5, -0.5)}>
        <caretLeftIcon.react {...SIZE} />
      </button>
      <span>{formatTimeRange(span.sinceMs, span.untilMs)}</span>
      <button className="jp-Gipfel-icon" aria-label={trans.__('Later')} onClick={show(0.5, 0.5)}>
        <caretRightIcon.react {...SIZE} />
      </button>
      <button className="jp-Gipfel-button jp-mod-small" onClick={show(-0.5, 0.5)}>
        {trans.__('Zoom out')}
      </button>
      <button className="jp-Gipfel-button jp-mod-small" onClick={back}>
        {model.selection.runName === '' ? trans.__('Back to live') : trans.__('Whole run')}
      </button>
    </span>
  );
}

function SaveAs(props: IToolbarProps): React.JSX.Element {
  const { model, trans } = props;
  const [open, setOpen] = React.useState(false);
  const kinds = [
    ['parquet', trans.__('samples as Parquet')],
    ['csv', trans.__('samples as CSV')],
    ['png', trans.__('plots as PNG')]
  ] as const;
  return (
    <details
      className="jp-Gipfel-menu"
      open={open}
      onToggle={event => {
        setOpen(event.currentTarget.open);
      }}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          setOpen(false);
        }
      }}
    >
      <summary
        title={trans.__('Download the current view')}
        aria-label={trans.__('Download the current view')}
      >
        <downloadIcon.react {...SIZE} />
      </summary>
      <ul>
        {kinds.map(([kind, label]) => (
          <li key={kind}>
            <a
              href={model.requests.fileUrl(model.query(), kind)}
              download
              onClick={() => {
                setOpen(false);
              }}
            >
              {label}
            </a>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** Return the label of a run: its job or name, its environment, and its start. */
export function runLabel(run: IRunName): string {
  const name = run.job_id !== '' && run.cluster !== 'local' ? `${run.cluster} ${run.job_id}` : run.run;
  const began = run.started.slice(0, 16).replace('T', ' ');
  return [name, run.edf, began].filter(part => part !== '').join(' · ');
}
