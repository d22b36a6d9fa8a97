import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ITableRow } from '../api';
import { arrange, runColumns, runTitle, type IColumn } from './columns';
import { RunDetails, type IRunActions } from './details';
import type { RunsModel } from './model';
import { Help } from '../views/term';
import { GPU_HOURS, LOSS, SCORE, type ITerm } from '../views/terms';

export interface IRunsProps {
  readonly model: RunsModel;
  readonly actions: IRunActions;
  readonly trans: TranslationBundle;
}

/** The runs as a table; in a narrow view each run is a card. */
export function RunTable(props: IRunsProps): React.JSX.Element {
  const { model, trans } = props;
  const columns = React.useMemo(() => runColumns(trans), [trans]);
  const rows = arrange(model.runs ?? [], columns, model.order, model.filter);
  return (
    <>
      {rows.length === 0 && <p>{trans.__('No run contains all words of the filter.')}</p>}
      <div className="jp-Gipfel-scroll">
        <table className="jp-Gipfel-runTable">
          <caption className="jp-Gipfel-hidden">{trans.__('Runs, pinned ones first')}</caption>
          <thead>
            <tr>
              <th scope="col">
                <span className="jp-Gipfel-hidden">{trans.__('Selected')}</span>
              </th>
              <th scope="col">
                <span className="jp-Gipfel-hidden">{trans.__('Pinned')}</span>
              </th>
              {columns.map(each => (
                <Heading key={each.id} column={each} model={model} trans={trans} />
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(run => (
              <Row key={run.name} run={run} columns={columns} {...props} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Terms that the headings of these columns explain. */
const HEADING_TERMS: Readonly<Record<string, ITerm>> = { score: SCORE, loss: LOSS, gpu_hours: GPU_HOURS };

function Heading(props: { column: IColumn; model: RunsModel; trans: TranslationBundle }): React.JSX.Element {
  const { column, model } = props;
  const term = HEADING_TERMS[column.id];
  const { order } = model;
  const sorted = order.column === column.id;
  const direction = order.descending ? 'descending' : 'ascending';
  return (
    <th scope="col" aria-sort={sorted ? direction : undefined}>
      <button
        onClick={() => {
          const descending = sorted ? !order.descending : column.descending === true;
          model.set({ order: { column: column.id, descending } });
        }}
      >
        {column.title}
        <span aria-hidden="true">{sorted ? (order.descending ? ' ▾' : ' ▴') : ''}</span>
      </button>
      {term && <Help term={term} trans={props.trans} />}
    </th>
  );
}

function Row(props: IRunsProps & { run: ITableRow; columns: readonly IColumn[] }): React.JSX.Element {
  const { run, columns, model, actions, trans } = props;
  const title = runTitle(run);
  const open = model.opened === run.name;
  const [, ...others] = columns;
  return (
    <>
      <tr data-run={run.name}>
        <td>
          <input
            type="checkbox"
            aria-label={trans.__('Select %1', title)}
            checked={model.selected.includes(run.name)}
            onChange={() => {
              model.toggle(run.name);
            }}
          />
        </td>
        <td>
          <Pin run={run} model={model} trans={trans} />
        </td>
        <th scope="row">
          <button
            aria-expanded={open}
            title={run.name}
            onClick={() => {
              model.set({ opened: open ? '' : run.name });
            }}
          >
            {title}
          </button>
        </th>
        {others.map(each => (
          <td key={each.id} data-column={each.id} data-label={each.title}>
            {each.text(run)}
          </td>
        ))}
      </tr>
      {open && (
        <tr className="jp-Gipfel-runDetails">
          <td colSpan={columns.length + 2}>
            <RunDetails run={run} model={model} actions={actions} trans={trans} />
          </td>
        </tr>
      )}
    </>
  );
}

function Pin({ run, model, trans }: Omit<IRunsProps, 'actions'> & { run: ITableRow }): React.JSX.Element {
  return (
    <button
      className="jp-Gipfel-icon"
      aria-pressed={run.pinned}
      aria-label={trans.__('Pin %1', runTitle(run))}
      title={run.pinned ? trans.__('Unpin') : trans.__('Pin: stays on top, and is not deleted with old runs')}
      onClick={() => void model.change(run.name, { pinned: !run.pinned })}
    >
      <span aria-hidden="true">{run.pinned ? '★' : '☆'}</span>
    </button>
  );
}
