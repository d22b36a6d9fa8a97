import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../common/notice';
import type { ISection } from '../tokens';
import { RunComparison } from './comparison';
import { runColumns } from './columns';
import { MAX_COMPARED, type RunsModel } from './model';
import { RunTable, type IRunsProps } from './table';

/** Create the section with the table of runs; `openWide` opens the same in the main area. */
export function runsSection(props: IRunsProps & { readonly openWide: () => void }): ISection {
  return {
    id: 'runs',
    title: props.trans.__('Runs'),
    Body: () => <RunsView {...props} />,
    setVisible: visible => {
      props.model.setVisible(visible);
    }
  };
}

/** The table of runs with its filter, and the actions on selected runs. */
export function RunsView(props: IRunsProps & { readonly openWide?: () => void }): React.JSX.Element {
  const { model, trans } = props;
  return (
    <UseSignal signal={model.changed}>
      {(): React.JSX.Element => (
        <div className="jp-Gipfel-runs" aria-busy={model.busy}>
          <Controls {...props} />
          {model.problems.map(each => (
            <Notice key={each} shape="✗" text={each} error />
          ))}
          {model.comparison && (
            <RunComparison
              comparison={model.comparison}
              trans={trans}
              onClose={() => {
                model.set({ comparison: null });
              }}
            />
          )}
          {model.runs === null && model.problems.length === 0 && <p>{trans.__('Loading your runs…')}</p>}
          {model.runs?.length === 0 && (
            <p>{trans.__('No run yet. Every job leaves one, and so does `gipfel record` in a terminal.')}</p>
          )}
          {model.runs !== null && model.runs.length > 0 && <RunTable {...props} />}
        </div>
      )}
    </UseSignal>
  );
}

function Controls(props: IRunsProps & { readonly openWide?: () => void }): React.JSX.Element {
  const { model, trans } = props;
  const count = model.selected.length;
  return (
    <div className="jp-Gipfel-runControls">
      <input
        className="jp-Gipfel-field"
        type="search"
        aria-label={trans.__('Filter runs')}
        placeholder={trans.__('Filter: name, tag, commit…')}
        value={model.filter}
        onChange={event => {
          model.set({ filter: event.target.value });
        }}
      />
      <Order {...props} />
      <button
        className="jp-Gipfel-button"
        disabled={count < 2 || count > MAX_COMPARED || model.busy}
        title={trans.__('Select two to %1 runs; the first is compared with the others', MAX_COMPARED)}
        onClick={() => void model.compareSelected()}
      >
        {count < 2 ? trans.__('Compare') : trans.__('Compare %1', count)}
      </button>
      <Delete key={model.selected.join(' ')} model={model} trans={trans} />
      <button className="jp-Gipfel-button" disabled={model.busy} onClick={() => void model.refresh()}>
        {trans.__('Refresh')}
      </button>
      {props.openWide && (
        <button className="jp-Gipfel-button jp-Gipfel-openWide" onClick={props.openWide}>
          {trans.__('Open wide')}
        </button>
      )}
      <Prune model={model} trans={trans} />
    </div>
  );
}

/** The choice of the order in a narrow view, which hides the headings. */
function Order({ model, trans }: Pick<IRunsProps, 'model' | 'trans'>): React.JSX.Element {
  return (
    <label className="jp-Gipfel-runOrder">
      <span>{trans.__('Sort by')}</span>
      <select
        className="jp-Gipfel-field"
        value={model.order.column}
        onChange={event => {
          const column = runColumns(trans).find(each => each.id === event.target.value);
          model.set({ order: { column: event.target.value, descending: column?.descending === true } });
        }}
      >
        {runColumns(trans).map(each => (
          <option key={each.id} value={each.id}>
            {each.title}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Deletes the selected runs after a second press. */
function Delete({ model, trans }: { model: RunsModel; trans: IRunsProps['trans'] }): React.JSX.Element {
  const [asked, setAsked] = React.useState(false);
  const count = model.selected.length;
  return asked && count > 0 ? (
    <>
      <button className="jp-Gipfel-button jp-mod-warn" onClick={() => void model.removeSelected()}>
        {trans._n('Delete %1 run with its samples', 'Delete %1 runs with their samples', count)}
      </button>
      <button
        className="jp-Gipfel-button"
        onClick={() => {
          setAsked(false);
        }}
      >
        {trans.__('Keep')}
      </button>
    </>
  ) : (
    <button
      className="jp-Gipfel-button"
      disabled={count === 0 || model.busy}
      onClick={() => {
        setAsked(true);
      }}
    >
      {trans.__('Delete…')}
    </button>
  );
}

/** Selects the runs that `gipfel runs prune --keep N` would remove. */
function Prune({ model, trans }: Pick<IRunsProps, 'model' | 'trans'>): React.JSX.Element {
  const [keep, setKeep] = React.useState('20');
  const [found, setFound] = React.useState<number | null>(null);
  return (
    <details className="jp-Gipfel-prune">
      <summary>{trans.__('Old runs')}</summary>
      <form
        onSubmit={event => {
          event.preventDefault();
          setFound(model.selectOld(Number(keep)));
        }}
      >
        <label>
          <span>{trans.__('Keep the newest')}</span>
          <input
            className="jp-Gipfel-field"
            type="number"
            min={0}
            max={9999}
            required
            value={keep}
            onChange={event => {
              setKeep(event.target.value);
            }}
          />
        </label>
        <button className="jp-Gipfel-button" type="submit" disabled={model.busy || model.runs === null}>
          {trans.__('Select the others')}
        </button>
        <small role="status">
          {found === null
            ? trans.__('except pinned and tagged runs, and those in use')
            : found === 0
              ? trans.__('There are no others that are not pinned, tagged or in use.')
              : trans._n(
                  '%1 is selected; Delete… removes it.',
                  '%1 are selected; Delete… removes them.',
                  found
                )}
        </small>
      </form>
    </details>
  );
}
