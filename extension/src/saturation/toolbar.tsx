import type { TranslationBundle } from '@jupyterlab/translation';
import { downloadIcon, pauseIcon, runIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IRunName } from '../api';
import { runLabel } from '../common/run-label';
import { spanOf, TimeRange } from '../common/time-range';
import type { SaturationModel } from './model';

const SIZE = { tag: 'span', height: '16px', width: '16px' } as const;

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
      <Range model={model} trans={trans} />
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
    </div>
  );
}

function RunPicker(props: IToolbarProps): React.JSX.Element {
  const { model, runs, trans } = props;
  const { runName } = model.selection;
  return (
    <select
      className="jp-Gipfel-field jp-Gipfel-runPicker"
      aria-label={trans.__('Run')}
      value={runName}
      onFocus={props.onRuns}
      onChange={event => {
        model.selection.setRun(event.target.value);
      }}
    >
      <option value="">{trans.__('this run')}</option>
      {/* The list is read when it is opened, and another panel may have chosen before. */}
      {runName !== '' && !runs.some(run => run.run === runName) && <option value={runName}>{runName}</option>}
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

function Range(props: { model: SaturationModel; trans: TranslationBundle }): React.JSX.Element {
  const { model, trans } = props;
  const { selection } = model;
  return (
    <TimeRange
      lastS={selection.lastS}
      span={selection.timeSpan}
      drawn={() => spanOf(model.figure('job')) ?? spanOf(model.figure('host'))}
      back={
        selection.lastS === null
          ? trans.__('Whole run')
          : selection.runName === ''
            ? trans.__('Back to live')
            : trans.__('Newest')
      }
      trans={trans}
      onLast={seconds => {
        selection.setLast(seconds);
      }}
      onSpan={span => {
        if (span) {
          selection.setTimeSpan(span);
        } else {
          selection.clearTimeSpan();
        }
      }}
    />
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
