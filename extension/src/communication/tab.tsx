import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IGroupFamily, IJobCommunication, IJobTraffic, ICallTimes } from '../api';
import { Notice } from '../common/notice';
import { Table } from '../common/table';
import { GivenFigure } from '../figures/given';
import type { IDocumentTab } from '../job/document-tab';
import { Figure } from '../views/figures/figure';
import { decodedMatrix, sizeText, timeText } from './matrix';

interface IProps {
  readonly figure: GivenFigure;
  readonly trans: TranslationBundle;
}

/** Return the tab "Communication" of the job page. */
export function communicationTab(trans: TranslationBundle): IDocumentTab<IJobCommunication> {
  const figure = new GivenFigure(decodedMatrix);
  return {
    id: 'communication',
    title: trans.__('Communication'),
    rank: 35,
    reading: trans.__('Reading recorded calls…'),
    themed: true,
    Content: ({ value }) => <Content figure={figure} trans={trans} value={value} />
  };
}

function Content(props: IProps & { value: IJobCommunication }): React.JSX.Element {
  const { figure, trans, value } = props;
  React.useEffect(() => {
    figure.set(value.figure);
  }, [figure, value]);
  const { report } = value;
  if (report === null) {
    return (
      <Notice shape="○" text={value.missing}>
        <p>
          {trans.__(
            'The flight recorder of PyTorch keeps the newest calls of each rank for the cost of some memory; NCCL Inspector writes every call.'
          )}
        </p>
      </Notice>
    );
  }
  const [first, ...others] = report.lines;
  return (
    <>
      <h3>{first}</h3>
      {others.map(each => (
        <p key={each}>{each}</p>
      ))}
      <p className="jp-Gipfel-small">{trans.__('From %1.', report.sources.join(', '))}</p>
      <div className="jp-Gipfel-job-plots">
        <section aria-label={trans.__('Bytes sent')}>
          <h3>{matrixTitle(value.by, trans)}</h3>
          <Figure source={figure} name="communication" label={matrixTitle(value.by, trans)} trans={trans} />
        </section>
        <section aria-label={trans.__('Slowest calls')}>
          <h3>{trans.__('Slowest calls')}</h3>
          <CallTimesTable rows={report.slowest} trans={trans} />
        </section>
      </div>
      <h3>{trans.__('Groups')}</h3>
      <GroupTable rows={report.groups} trans={trans} />
      <Notes report={report} trans={trans} />
    </>
  );
}

function matrixTitle(by: string, trans: TranslationBundle): string {
  return by === 'rank'
    ? trans.__('Bytes between ranks')
    : by === 'node'
      ? trans.__('Bytes between nodes')
      : trans.__('Bytes between blocks of ranks');
}

function CallTimesTable(props: { rows: readonly ICallTimes[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Call'),
    trans.__('Group'),
    trans.__('Calls'),
    trans.__('Median'),
    trans.__('95 %'),
    trans.__('algbw'),
    trans.__('busbw'),
    trans.__('Slower than its peers')
  ];
  return (
    <Table heads={heads}>
      {rows.map(each => (
        <tr key={`${each.label} ${each.members} ${each.kind} ${each.size}`}>
          <th scope="row">{`${each.kind} ${each.size > 0 ? sizeText(each.size) : ''}`}</th>
          <td>{each.label}</td>
          <td>{each.calls}</td>
          <td>{each.median_us === null ? '–' : timeText(each.median_us)}</td>
          <td>{each.p95_us === null ? '–' : timeText(each.p95_us)}</td>
          <td>{each.algbw === null ? '–' : `${sizeText(each.algbw)}/s`}</td>
          <td>{each.busbw === null ? '–' : `${sizeText(each.busbw)}/s`}</td>
          <td>{each.factor === null ? '' : `▲ ${each.slowest}: ${each.factor.toFixed(1)} ×`}</td>
        </tr>
      ))}
    </Table>
  );
}

function GroupTable(props: { rows: readonly IGroupFamily[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Group'),
    trans.__('Ranks'),
    trans.__('Nodes'),
    trans.__('Sent'),
    trans.__('Calls'),
    trans.__('Source')
  ];
  return (
    <Table heads={heads}>
      {rows.map(each => (
        <tr key={`${each.label} ${each.size} ${each.source}`}>
          <th scope="row">{each.label}</th>
          <td>{each.ranks === '' ? trans.__('%1 × %2 ranks', each.groups, each.size) : each.ranks}</td>
          <td>{each.nodes === 0 ? '?' : each.nodes}</td>
          <td>{sizeText(each.sent)}</td>
          <td>
            {Object.entries(each.calls)
              .map(([kind, count]) => `${kind} × ${count}`)
              .join(', ')}
          </td>
          <td>{each.source}</td>
        </tr>
      ))}
    </Table>
  );
}

function Notes(props: { report: IJobTraffic; trans: TranslationBundle }): React.JSX.Element {
  const { report, trans } = props;
  return (
    <>
      {report.notes.map(each => (
        <p key={each} className="jp-Gipfel-small">
          {each}
        </p>
      ))}
      {report.problems.map(each => (
        <p key={each} className="jp-Gipfel-small">
          ✗ {trans.__("Can't be read: %1", each)}
        </p>
      ))}
    </>
  );
}
