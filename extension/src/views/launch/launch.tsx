import * as React from 'react';

import type { ILaunch } from '../../api';
import { formatLocalTime } from '../../common/clock';
import { ActionButton, StateLabel } from '../elements';
import type { ITranslation } from '../translation';
import { Details, Phases } from './details';
import type { ILaunchDetails } from './document';
import { RankFiles, type FileUrl } from './files';
import { LaunchLog, type ILaunchLog } from './log';
import { LossCurve } from './loss-curve';
import { durationText, progressText, rankText, statusShape, statusText } from './summary';

/** Actions on a launch; those that a page doesn't offer are missing. */
export interface ILaunchControls {
  /** True while an action is in progress. */
  readonly busy: boolean;
  readonly stopping?: boolean;
  readonly toggleLog?: () => void;
  readonly stop?: () => void;
  readonly openNotebook?: () => void;
  readonly openJob?: () => void;
  readonly rerun?: () => void;
}

interface ILaunchProps {
  readonly launch: ILaunch;
  /** Shown if the page has them. */
  readonly details?: ILaunchDetails;
  readonly controls: ILaunchControls;
  /** The log while it is open. */
  readonly log?: ILaunchLog | undefined;
  /** Returns the URL of a file of a rank; undefined where the page can't reach the files. */
  readonly fileUrl: FileUrl | undefined;
  /** The time of the state, in milliseconds since 1970; undefined where it is not known. */
  readonly updatedMs?: number;
  readonly trans: ITranslation;
}

/** One launch: its state, progress, details, actions, and its log while that is open. */
export function Launch(props: ILaunchProps): React.JSX.Element {
  const { launch, details, log, fileUrl, updatedMs, trans } = props;
  const { fraction } = launch.progress;
  const progress = progressText(launch, details, trans);
  return (
    <article data-launch={launch.id} data-status={launch.status}>
      <Head launch={launch} updatedMs={updatedMs} trans={trans} />
      {details && <Phases phase={launch.phase} vetting={details.vetting !== ''} trans={trans} />}
      {fraction !== null && <progress max={1} value={fraction} aria-label={trans.__('Progress')} />}
      {progress && (
        <p className="jp-Gipfel-launch-progress">
          {progress} {details && <LossCurve losses={details.losses} trans={trans} />}
        </p>
      )}
      {launch.message && <p className="jp-mod-says">{launch.message}</p>}
      {details && <Details details={details} trans={trans} />}
      <RankFiles launch={launch} folder={details?.folder ?? ''} fileUrl={fileUrl} trans={trans} />
      <Actions {...props} />
      {log && <LaunchLog ranks={launch.ranks} log={log} trans={trans} />}
      {details?.folder && <Folder launch={launch} folder={details.folder} trans={trans} />}
    </article>
  );
}

function Head(props: {
  launch: ILaunch;
  updatedMs: number | undefined;
  trans: ITranslation;
}): React.JSX.Element {
  const { launch, updatedMs, trans } = props;
  const ended = launch.phase === 'ended';
  const endMs = !ended ? updatedMs : launch.ended_ns === null ? undefined : launch.ended_ns / 1e6;
  return (
    <header>
      <StateLabel shape={statusShape(launch.status)}>
        {launch.number > 0 ? `#${launch.number}` : ''}
      </StateLabel>
      {launch.name && <strong title={launch.title}>{launch.name}</strong>}
      <span role="status">{statusText(launch.status, trans)}</span>
      {launch.started_ns !== null && endMs !== undefined && (
        <span title={trans.__('Duration')}>{durationText(endMs / 1e3 - launch.started_ns / 1e9)}</span>
      )}
      {ended && launch.ended_ns !== null && (
        <span title={trans.__('Ended')}>{formatLocalTime(launch.ended_ns / 1e6)}</span>
      )}
      {launch.ranks > 0 && <span>{rankText(launch, trans)}</span>}
    </header>
  );
}

function Actions(props: ILaunchProps): React.JSX.Element | null {
  const { launch, controls, log, trans } = props;
  const { toggleLog, stop, openNotebook, openJob, rerun } = controls;
  const ended = launch.phase === 'ended';
  const button = (text: string, act: () => void, pressed?: boolean): React.JSX.Element => (
    <ActionButton
      text={text}
      item={`#${launch.number} ${launch.name}`}
      busy={controls.busy}
      pressed={pressed}
      onClick={act}
    />
  );
  if (launch.id === '') {
    return null;
  }
  return (
    <footer>
      {toggleLog && button(trans.__('Log'), toggleLog, log !== undefined)}
      {stop && !ended && button(controls.stopping ? trans.__('Stopping …') : trans.__('Stop'), stop)}
      {openJob && button(trans.__('All ranks'), openJob)}
      {openNotebook && launch.notebook && button(trans.__('Open notebook'), openNotebook)}
      {rerun && ended && button(trans.__('Run again'), rerun)}
    </footer>
  );
}

function Folder(props: { launch: ILaunch; folder: string; trans: ITranslation }): React.JSX.Element {
  const { launch, folder, trans } = props;
  const kept = launch.id !== '' && launch.phase !== 'ended';
  return (
    <p className="jp-Gipfel-launch-folder">
      {folder}
      {kept && ` · ${trans.__('keeps running if you close this tab or restart the kernel')}`}
    </p>
  );
}
