import * as React from 'react';

import type { ILaunch } from '../../api';
import type { ITranslation } from '../translation';

const VIEWER = 'https://ui.perfetto.dev';
/** Directories below a launch's directory. */
const DIRECTORIES = { trace: 'profile', dump: 'flight_recorder' } as const;

/** The kinds of files that ranks write for other programs. */
export type RankFile = keyof typeof DIRECTORIES;

/** Returns the URL of a file of a rank. */
export type FileUrl = (kind: RankFile, launch: string, rank: number) => string;

interface IFilesProps {
  readonly launch: ILaunch;
  /** The launch's directory; empty where it is not known. */
  readonly folder: string;
  /** Undefined if the page can't reach the files; then only their names are shown. */
  readonly fileUrl: FileUrl | undefined;
  readonly trans: ITranslation;
}

/** Download links to profiler traces and flight recorder dumps of the ranks. */
export function RankFiles(props: IFilesProps): React.JSX.Element | null {
  const { launch, trans } = props;
  const { traces, dumps } = launch;
  if (traces.length + dumps.length === 0) {
    return null;
  }
  return (
    <details className="jp-Gipfel-launch-files">
      <summary>{trans.__('Files of ranks')}</summary>
      {traces.length > 0 && (
        <>
          <Files {...props} title={trans.__('Profiler traces')} kind="trace" ranks={traces} />
          <p>
            {trans.__('A trace opens in')}{' '}
            <a href={VIEWER} target="_blank" rel="noopener noreferrer">
              Perfetto
            </a>
            {trans.__(': Open trace file there; it stays in the browser.')}
          </p>
        </>
      )}
      {dumps.length > 0 && (
        <Files {...props} title={trans.__('Flight recorder’s dumps')} kind="dump" ranks={dumps} />
      )}
    </details>
  );
}

function Files(
  props: IFilesProps & { title: string; kind: RankFile; ranks: readonly number[] }
): React.JSX.Element {
  const { launch, folder, fileUrl, trans, title, kind, ranks } = props;
  return (
    <p>
      {title}:
      {ranks.map(rank => {
        const text = trans.__('rank %1', rank);
        return (
          <React.Fragment key={rank}>
            {' '}
            {fileUrl ? (
              <a href={fileUrl(kind, launch.id, rank)} download="">
                {text}
              </a>
            ) : (
              text
            )}
          </React.Fragment>
        );
      })}
      {folder && ` (${folder}/${DIRECTORIES[kind]})`}
    </p>
  );
}
