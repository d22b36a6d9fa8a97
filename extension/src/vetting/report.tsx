import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IGrid, CellWord } from '../api';
import { Culprits, Grid, SHAPES, wordOf } from './grid';
import type { VettingModel } from './model';

/** The report: grid, what is left out of it, culprits, what to do with them. */
export function Report(props: {
  grid: IGrid;
  model: VettingModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { grid, model, trans } = props;
  const more = Object.entries(grid.more) as [CellWord, number][];
  const hidden = more.reduce((sum, [, count]) => sum + count, 0);
  return (
    <>
      {grid.rows.length > 0 && <Grid grid={grid} trans={trans} />}
      {(hidden > 0 || model.all) && (
        <p className="jp-Gipfel-vetting-row">
          <span>
            {more
              .map(
                ([word, count]) => `${SHAPES[word]} ${trans.__('%1 more: %2', count, wordOf(word, trans))}`
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

/** The option that keeps a job off the bad nodes, to copy. */
function Exclude(props: { exclude: string; trans: TranslationBundle }): React.JSX.Element {
  const { exclude, trans } = props;
  const [copied, setCopied] = React.useState('');
  const option = `--exclude=${exclude}`;
  const copy = (): void => {
    // Only pages with a certificate, and this machine's own, have a clipboard.
    const written =
      (navigator.clipboard as Clipboard | undefined)?.writeText(option) ?? Promise.reject(new Error());
    written.then(
      () => {
        setCopied(trans.__('✓ copied'));
      },
      () => {
        setCopied(trans.__('Select it, and copy it by Ctrl-C.'));
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
