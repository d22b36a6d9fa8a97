import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IConfigurationRow, IGitRow, IMeasurementRow, IRunComparison } from '../api';
import { runTitle } from './columns';

interface IProps {
  readonly comparison: IRunComparison;
  readonly trans: TranslationBundle;
}

/** Runs side by side: measurements, what is different in their configuration, and their commits. */
export function RunComparison(props: IProps & { readonly onClose: () => void }): React.JSX.Element {
  const { comparison, trans } = props;
  const paces = comparison.runs.flatMap((run, place) => {
    const sentence = comparison.pace[place]?.sentence;
    return sentence === undefined ? [] : [`${runTitle(run)}: ${sentence}`];
  });
  return (
    <section className="jp-Gipfel-runComparison" aria-label={trans.__('Comparison')}>
      <div className="jp-Gipfel-viewHead">
        <h3>{trans.__('Comparison of %1 runs', comparison.runs.length)}</h3>
        <button className="jp-Gipfel-button jp-mod-small" onClick={props.onClose}>
          {trans.__('Close')}
        </button>
      </div>
      {paces.map(each => (
        <p key={each}>{each}</p>
      ))}
      <Block title={trans.__('Measurements')} {...props}>
        {comparison.measurements.filter(isMeasured).map(row => (
          <tr key={row.name}>
            <th scope="row">{row.unit === '' ? row.name : `${row.name} (${row.unit})`}</th>
            {row.values.map((value, place) => (
              <td key={place}>
                {value === null ? '–' : shortNumber(value)}
                <Verdict better={row.better[place] ?? null} trans={trans} />
              </td>
            ))}
          </tr>
        ))}
      </Block>
      <Block title={trans.__('Configuration that differs')} {...props}>
        {comparison.configuration.filter(isGiven).map(row => (
          <tr key={row.key}>
            <th scope="row">{row.key}</th>
            {row.values.map((value, place) => (
              <td key={place}>{value === null || value === '' ? '–' : value}</td>
            ))}
          </tr>
        ))}
        <tr>
          <th scope="row">{trans.__('commit')}</th>
          {comparison.git.map((each, place) => (
            <td key={place}>{commitText(each, trans)}</td>
          ))}
        </tr>
      </Block>
      {comparison.more > 0 && <p>{trans.__('%1 more differences are left out.', comparison.more)}</p>}
    </section>
  );
}

function isMeasured(row: IMeasurementRow): boolean {
  return row.values.some(each => each !== null);
}

/** Return true if at least one run has a non-empty value for the key. */
function isGiven(row: IConfigurationRow): boolean {
  return row.values.some(each => ![null, '', '[]', '{}'].includes(each));
}

function Block(props: IProps & { title: string; children: React.ReactNode }): React.JSX.Element {
  return (
    <div className="jp-Gipfel-scroll" tabIndex={0} role="region" aria-label={props.title}>
      <table className="jp-Gipfel-table">
        <caption>{props.title}</caption>
        <thead>
          <tr>
            <td />
            {props.comparison.runs.map(run => (
              <th key={run.name} scope="col" title={run.name}>
                {runTitle(run)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

function Verdict(props: { better: boolean | null; trans: TranslationBundle }): React.JSX.Element | null {
  const { better, trans } = props;
  return better === null ? null : <small> {better ? trans.__('better') : trans.__('worse')}</small>;
}

function commitText(row: IGitRow, trans: TranslationBundle): string {
  if (row.commit === '') {
    return '–';
  }
  const changed =
    row.changed_files === null || row.changed_files === 0
      ? ''
      : trans._n('%1 file changed', '%1 files changed', row.changed_files);
  const { commits = [], files = [], reason = '' } = row.difference ?? {};
  const since =
    commits.length + files.length === 0
      ? reason
      : trans.__(
          '%1, %2: %3',
          trans._n('%1 commit', '%1 commits', commits.length),
          trans._n('%1 file', '%1 files', files.length),
          [...commits, ...files].join('; ')
        );
  return [row.commit.slice(0, 8), changed, since].filter(each => each !== '').join(' · ');
}

function shortNumber(value: number): string {
  return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
}
