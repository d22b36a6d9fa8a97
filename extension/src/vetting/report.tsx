import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IGrid, CellVerdict } from '../api';
import { Culprits, Grid, SHAPES, verdictText } from './grid';
import type { VettingModel } from './model';

/** The report: grid, omitted rows, faulty components, and actions. */
export function Report(props: {
  grid: IGrid;
  model: VettingModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { grid, model, trans } = props;
  const more = Object.entries(grid.more) as [CellVerdict, number][];
  const hidden = more.reduce((sum, [, count]) => sum + count, 0);
  return (
    <>
      {grid.rows.length > 0 && <Grid grid={grid} trans={trans} />}
      {(hidden > 0 || model.all) && (
        <p className="jp-Gipfel-vetting-row">
          <span>
            {more
              .map(
                ([word, count]) =>
                  `${SHAPES[word]} ${trans.__('%1 more: %2', count, verdictText(word, trans))}`
              )
              .join(' · ')}
          </span>
          <button
            className="jp-Gipfel-button"
            onClick={() => {
              model.showAll(hidden > 0);
            }}
          >
            {hidden > 0 ? trans.__('Show all nodes') : trans.__('Show fewer')}
          </button>
        </p>
      )}
      {grid.culprits.length > 0 && (
        <Culprits culprits={grid.culprits} more={grid.more_culprits} trans={trans} />
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

/** The option that excludes the failed nodes from a job, with a copy button. */
function Exclude(props: { exclude: string; trans: TranslationBundle }): React.JSX.Element {
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
