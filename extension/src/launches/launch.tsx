import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ILaunch } from '../api';
import { formatLocalTime } from '../common/clock';
import { ActionButton, StateLabel, joinParts } from '../workloads/elements';
import type { ILaunchActions } from './actions';
import { LaunchLog } from './log';
import type { LaunchesModel } from './model';
import { RankFiles } from './rank-files';

interface ILaunchProps {
  readonly launch: ILaunch;
  readonly model: LaunchesModel;
  readonly trans: TranslationBundle;
  readonly actions: ILaunchActions;
}

const SHAPES: Readonly<Record<string, string>> = {
  completed: '✓',
  running: '●',
  queued: '○',
  vetting: '◐',
  preflight: '◐',
  stopped: '■',
  preempted: '◇',
  silent: '?'
};

/** One launch: its state, progress, actions, and its log while that is open. */
export function Launch(props: ILaunchProps): React.JSX.Element {
  const { launch, model, trans } = props;
  const { fraction } = launch.progress;
  const progress = progressText(launch, trans);
  return (
    <article data-launch={launch.id} data-status={launch.status}>
      <Head launch={launch} updatedMs={model.updatedMs} trans={trans} />
      {fraction !== null && <progress max={1} value={fraction} aria-label={trans.__('Progress')} />}
      {progress && <p>{progress}</p>}
      {launch.message && (
        <p className={launch.phase === 'ended' ? 'jp-mod-says' : undefined}>{launch.message}</p>
      )}
      <RankFiles launch={launch} requests={model.requests} trans={trans} />
      <Actions {...props} />
      {model.openLogId === launch.id && <LaunchLog launch={launch} model={model} trans={trans} />}
    </article>
  );
}

function Head(props: { launch: ILaunch; updatedMs: number; trans: TranslationBundle }): React.JSX.Element {
  const { launch, updatedMs, trans } = props;
  const ended = launch.phase === 'ended';
  return (
    <header>
      <StateLabel shape={SHAPES[launch.status] ?? '✗'}>#{launch.number}</StateLabel>
      <strong title={launch.title}>{launch.name}</strong>
      <span>{launch.status === 'silent' ? trans.__('not responding') : launch.status}</span>
      {!ended && launch.started_ns !== null && (
        <span>{durationText(updatedMs - launch.started_ns / 1e6)}</span>
      )}
      {ended && launch.ended_ns !== null && <span>{formatLocalTime(launch.ended_ns / 1e6)}</span>}
      <span>
        {launch.node_count > 1
          ? trans._n('%2 × %1 rank', '%2 × %1 ranks', launch.ranks / launch.node_count, launch.node_count)
          : trans._n('%1 rank', '%1 ranks', launch.ranks)}
      </span>
    </header>
  );
}

function Actions(props: ILaunchProps): React.JSX.Element {
  const { launch, model, trans, actions } = props;
  const ended = launch.phase === 'ended';
  const open = model.openLogId === launch.id;
  const button = (text: string, act: () => void, pressed?: boolean): React.JSX.Element => (
    <ActionButton
      text={text}
      item={`#${launch.number} ${launch.name}`}
      busy={model.isBusy(launch.id)}
      pressed={pressed}
      onClick={act}
    />
  );
  const toggle = (): void => {
    model.openLog(open ? '' : launch.id);
  };
  const openNotebook = (): void => {
    actions.openNotebook(launch.id);
  };
  return (
    <footer>
      {button(trans.__('Log'), toggle, open)}
      {!ended && button(trans.__('Stop'), () => void model.stop(launch.id))}
      {launch.notebook && button(trans.__('Open notebook'), openNotebook)}
      {ended && button(trans.__('Run again'), () => void model.rerun(launch.id))}
    </footer>
  );
}

function progressText(launch: ILaunch, trans: TranslationBundle): string {
  const { progress, training_curve: curve } = launch;
  const found: string[] = [];
  if (progress.step !== null) {
    const total = progress.total === null ? '' : `/${progress.total.toLocaleString('en')}`;
    found.push(trans.__('step %1', progress.step.toLocaleString('en') + total));
  }
  if (curve.rate !== null) {
    found.push(
      `${Number(curve.rate.toPrecision(4)).toLocaleString('en')} ${curve.rate_name.replace(/_per_s$/, '')}/s`
    );
  } else if (curve.steps_per_s !== null) {
    found.push(trans.__('%1 steps/s', curve.steps_per_s.toPrecision(2)));
  }
  if (launch.restarts > 0) {
    found.push(trans._n('%1 restart', '%1 restarts', launch.restarts));
  }
  return joinParts(found);
}

function durationText(ms: number): string {
  const minutes = Math.max(0, Math.floor(ms / 60_000));
  const twoDigits = (value: number): string => String(value).padStart(2, '0');
  return `${twoDigits(Math.floor(minutes / 60))}:${twoDigits(minutes % 60)}`;
}
