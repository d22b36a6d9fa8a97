import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IComparison, IFigure, IRunName } from '../api';
import { errorMessage } from '../common/error-message';
import { runLabel } from '../common/run-label';
import { Notice } from '../common/notice';
import { loadPlotly } from '../figures/plotly';
import { FigureView } from '../views/figures/plot';
import type { SaturationModel } from './model';

/** Comparison of the run in view with another one: a table of differences, and the lines of both. */
export function Compare(props: {
  model: SaturationModel;
  runs: readonly IRunName[];
  trans: TranslationBundle;
}): React.JSX.Element {
  const { model, runs, trans } = props;
  const shown = runs.find(run =>
    model.selection.runName === '' ? run.current : run.run === model.selection.runName
  );
  const others = runs.filter(run => run !== shown);
  const [other, setOther] = React.useState('');
  if (others.length === 0) {
    return (
      <Notice
        shape="○"
        text={trans.__('There is no other run yet. The next job can be compared with this.')}
      />
    );
  }
  return (
    <section className="jp-Gipfel-view" aria-label={trans.__('Compare two runs')}>
      <div className="jp-Gipfel-viewHead">
        <h3>{trans.__('Compare with')}</h3>
        <select
          className="jp-Gipfel-field"
          aria-label={trans.__('The run to compare with')}
          value={other}
          onChange={event => {
            setOther(event.target.value);
          }}
        >
          <option value="">{trans.__('choose a run…')}</option>
          {others.map(run => (
            <option key={run.run} value={run.run}>
              {runLabel(run)}
            </option>
          ))}
        </select>
      </div>
      {other !== '' && (
        <ComparisonView
          key={`${other} ${model.selection.runName} ${model.selection.dark}`}
          other={other}
          model={model}
          trans={trans}
        />
      )}
    </section>
  );
}

/** The differences from one other run. */
function ComparisonView(props: {
  other: string;
  model: SaturationModel;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { other, model, trans } = props;
  const [comparison, setComparison] = React.useState<IComparison | null>(null);
  const [problem, setProblem] = React.useState('');
  React.useEffect(() => {
    let gone = false;
    model.requests.compare(other, model.selection.runName, model.selection.dark).then(
      comparison => {
        if (!gone) {
          setComparison(comparison);
        }
      },
      (error: unknown) => {
        if (!gone) {
          setProblem(errorMessage(error));
        }
      }
    );
    return (): void => {
      gone = true;
    };
  }, [model, other]);
  if (problem !== '') {
    return <Notice error shape="✗" text={problem} />;
  }
  if (!comparison) {
    return <Notice shape="◐" text={trans.__('Both runs are being read…')} />;
  }
  return (
    <>
      <Table comparison={comparison} trans={trans} />
      <ComparisonFigure figure={comparison.figure} label={trans.__('Comparison of both runs')} />
    </>
  );
}

function Table(props: { comparison: IComparison; trans: TranslationBundle }): React.JSX.Element {
  const { comparison, trans } = props;
  return (
    <div className="jp-Gipfel-scroll">
      <table className="jp-Gipfel-table">
        <thead>
          <tr>
            <th scope="col">{trans.__('points or %')}</th>
            <th scope="col">{comparison.runs[0]}</th>
            <th scope="col">{comparison.runs[1]}</th>
            <th scope="col">{trans.__('change')}</th>
          </tr>
        </thead>
        <tbody>
          {comparison.rows.map(row => (
            <tr key={row.name} data-better={row.better ?? ''}>
              <th scope="row">{row.name}</th>
              <td>{number(row.first)}</td>
              <td>{number(row.second)}</td>
              <td>
                {row.better === null ? '' : row.better ? '▲ ' : '▼ '}
                {row.change === null ? '–' : (row.change > 0 ? '+' : '') + number(row.change)}
                {row.better !== null && (
                  <span className="jp-Gipfel-hidden">
                    {' '}
                    {row.better ? trans.__('better') : trans.__('worse')}
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function ComparisonFigure(props: { figure: IFigure; label: string }): React.JSX.Element {
  const node = React.useRef<HTMLDivElement>(null);
  React.useEffect(() => {
    if (!node.current) {
      return undefined;
    }
    const view = new FigureView(node.current, loadPlotly);
    view.set(props.figure);
    void view.draw().catch(() => undefined);
    return (): void => {
      view.dispose();
    };
  }, [props.figure]);
  return (
    <div className="jp-Gipfel-scroll">
      <div className="jp-Gipfel-figure" role="figure" aria-label={props.label} ref={node} />
    </div>
  );
}

function number(value: number | null): string {
  if (value === null) {
    return '–';
  }
  const size = Math.abs(value);
  return size >= 1000 ? value.toFixed(0) : size >= 1 ? value.toFixed(1) : value.toFixed(2);
}
