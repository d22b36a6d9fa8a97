import * as React from 'react';

import type { IVettingGrid, CellVerdict } from '../../api';
import type { ITranslation } from '../translation';
import { FaultyComponents, Grid, SHAPES, verdictText } from './grid';

/** Whether the rows of all nodes are shown, and how to change it. */
export interface IRowChoice {
  readonly all: boolean;
  readonly showAll: (all: boolean) => void;
}

/** The report: grid, omitted rows, faulty components, and the option that excludes nodes. */
export function Report(props: {
  grid: IVettingGrid;
  /** Undefined where the page can't fetch more rows. */
  rows?: IRowChoice;
  trans: ITranslation;
}): React.JSX.Element {
  const { grid, rows, trans } = props;
  return (
    <>
      {grid.rows.length > 0 && <Grid grid={grid} trans={trans} />}
      <OmittedRows more={grid.more} rows={rows} trans={trans} />
      {grid.faulty_components.length > 0 && (
        <FaultyComponents
          components={grid.faulty_components}
          more={grid.more_faulty_components}
          trans={trans}
        />
      )}
      {grid.outcome && <p>{grid.outcome}</p>}
      {grid.exclude && <Exclude exclude={grid.exclude} trans={trans} />}
      {grid.notes.length > 0 && (
        <details>
          <summary>{trans._n('%1 note', '%1 notes', grid.notes.length)}</summary>
          <ul>
            {grid.notes.map(note => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

/** How many nodes have no row, by verdict, and the button that shows them. */
function OmittedRows(props: {
  more: IVettingGrid['more'];
  rows: IRowChoice | undefined;
  trans: ITranslation;
}): React.JSX.Element | null {
  const { rows, trans } = props;
  const more = Object.entries(props.more) as [CellVerdict, number][];
  const omitted = more.length > 0;
  if (!omitted && !rows?.all) {
    return null;
  }
  return (
    <p className="jp-Gipfel-vetting-row">
      <span>
        {more
          .map(
            ([word, count]) => `${SHAPES[word]} ${trans.__('%1 more: %2', count, verdictText(word, trans))}`
          )
          .join(' · ')}
      </span>
      {rows && (
        <button
          className="jp-Gipfel-button"
          onClick={() => {
            rows.showAll(omitted);
          }}
        >
          {omitted ? trans.__('Show all nodes') : trans.__('Show fewer')}
        </button>
      )}
    </p>
  );
}

/** The option that excludes the failed nodes from a job, with a copy button. */
function Exclude(props: { exclude: string; trans: ITranslation }): React.JSX.Element {
  const { exclude, trans } = props;
  const [copied, setCopied] = React.useState('');
  const option = `--exclude=${exclude}`;
  const copy = (): void => {
    // Browsers offer the clipboard only to pages over HTTPS and on localhost.
    const written =
      (navigator.clipboard as Clipboard | undefined)?.writeText(option) ?? Promise.reject(new Error());
    written.then(
      () => {
        setCopied(trans.__('✓ copied'));
      },
      () => {
        setCopied(trans.__('Copying failed. Select the text and press Ctrl-C.'));
      }
    );
  };
  return (
    <p className="jp-Gipfel-vetting-row">
      <code>{option}</code>
      <button className="jp-Gipfel-button" onClick={copy}>
        {trans.__('Copy')}
      </button>
      <span role="status">{copied}</span>
    </p>
  );
}
