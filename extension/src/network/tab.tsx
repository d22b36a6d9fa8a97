import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobConnection, IJobGateRow, IJobNetwork } from '../api';
import { formatTimeOfDay, zoneName } from '../common/clock';
import { Notice } from '../common/notice';
import { Table } from '../common/table';
import { sizeText } from '../communication/matrix';
import type { IDocumentTab } from '../job/document-tab';

/** Return the tab "Network" of the job page. */
export function networkTab(trans: TranslationBundle): IDocumentTab<IJobNetwork> {
  return {
    id: 'network',
    title: trans.__('Network'),
    rank: 38,
    reading: trans.__('Reading connections…'),
    Content: ({ value }) => <Content trans={trans} value={value} />
  };
}

function Content(props: { trans: TranslationBundle; value: IJobNetwork }): React.JSX.Element {
  const { trans, value } = props;
  if (!value.recorded && !value.gated && value.gate.length === 0) {
    return (
      <Notice
        shape="○"
        text={trans.__('No connections were recorded. The recorder of a job looks for them once a second.')}
      />
    );
  }
  const ports = value.connections.filter(each => each.direction === 'listen');
  const peers = value.connections.filter(each => each.direction !== 'listen');
  return (
    <>
      {value.closed !== '' && <Notice shape="▲" text={trans.__('The gates are closed: %1.', value.closed)} />}
      {(value.gated || value.gate.length > 0) && <Gate value={value} trans={trans} />}
      <h3>{value.recorded ? summary(peers, ports, trans) : trans.__('No connections were recorded')}</h3>
      {peers.length > 0 && <Peers rows={peers} trans={trans} />}
      {ports.length > 0 && <Ports rows={ports} trans={trans} />}
      {value.left_out > 0 && <p>{trans.__('%1 more: gipfel net lists them.', value.left_out)}</p>}
      {value.notes.map(each => (
        <p key={each} className="jp-Gipfel-small">
          {each}
        </p>
      ))}
      <p className="jp-Gipfel-small">
        {trans.__(
          'Seen once a second; a gate alone knows names. Connections within a node, and RDMA, are not seen.'
        )}
      </p>
    </>
  );
}

/** Hosts that programs behind a network gate requested: refused ones first, then allowed ones. */
function Gate(props: { value: IJobNetwork; trans: TranslationBundle }): React.JSX.Element {
  const { value, trans } = props;
  if (value.gate.length === 0) {
    return <h3>{trans.__('Gate: no program has asked for a destination yet')}</h3>;
  }
  const heads = [
    trans.__('Gate'),
    trans.__('Destination'),
    trans.__('Times'),
    trans.__('Last'),
    trans.__('Sent'),
    trans.__('Received'),
    trans.__('Why'),
    trans.__('Node')
  ];
  return (
    <>
      <h3>{gateSummary(value.gate, trans)}</h3>
      <Table heads={heads}>
        {value.gate.map(each => (
          <tr key={[each.node, each.place, each.protocol, each.allowed].join(' ')}>
            <th scope="row">{outcome(each, trans)}</th>
            <td>{each.protocol === 'outside' ? each.place : `${each.place}/${each.protocol}`}</td>
            <td>{each.count}</td>
            <td>
              <time dateTime={new Date(each.last_ms).toISOString()}>
                {formatTimeOfDay(each.last_ms)} {zoneName(each.last_ms)}
              </time>
            </td>
            <td>{each.allowed ? sizeText(each.sent) : ''}</td>
            <td>{each.allowed ? sizeText(each.received) : ''}</td>
            <td>{each.reason}</td>
            <td>{each.node}</td>
          </tr>
        ))}
      </Table>
    </>
  );
}

function gateSummary(rows: readonly IJobGateRow[], trans: TranslationBundle): string {
  const outside = rows.filter(each => each.protocol === 'outside').length;
  const allowed = rows.filter(each => each.allowed).length - outside;
  const texts = [
    trans._n('1 destination refused', '%1 destinations refused', rows.length - outside - allowed),
    trans._n('1 allowed', '%1 allowed', allowed)
  ];
  if (outside > 0) {
    texts.push(trans.__('ranks outside of the gate'));
  }
  return trans.__('Gate: %1', texts.join(' · '));
}

function outcome(each: IJobGateRow, trans: TranslationBundle): string {
  if (each.protocol === 'outside') {
    return trans.__('▲ outside');
  }
  return each.allowed ? trans.__('● allowed') : trans.__('▲ refused');
}

function summary(
  peers: readonly IJobConnection[],
  ports: readonly IJobConnection[],
  trans: TranslationBundle
): string {
  const outside = peers.filter(each => !each.inside);
  const sent = outside.reduce((sum, each) => sum + (each.sent ?? 0), 0);
  const open = ports.filter(each => each.all_interfaces).length;
  const first =
    outside.length === 0
      ? trans.__('No connections with peers outside of the cluster')
      : trans._n(
          '1 peer outside of the cluster, %2 sent',
          '%1 peers outside of the cluster, %2 sent',
          addresses(outside),
          sizeText(sent)
        );
  return open === 0
    ? first
    : `${first} · ${trans._n('1 port open on all interfaces', '%1 ports open on all interfaces', open)}`;
}

function addresses(rows: readonly IJobConnection[]): number {
  return new Set(rows.map(each => each.address)).size;
}

function Peers(props: { rows: readonly IJobConnection[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  const heads = [
    trans.__('Program'),
    trans.__('Peer'),
    trans.__('Where'),
    trans.__('Connections'),
    trans.__('Sent'),
    trans.__('Received'),
    trans.__('Node')
  ];
  return (
    <Table heads={heads}>
      {rows.map(each => (
        <tr key={rowKey(each)}>
          <th scope="row">{program(each, trans)}</th>
          <td>{`${each.direction === 'out' ? '→' : '←'} ${each.address} ${each.port}/${each.protocol}`}</td>
          <td>{each.inside ? trans.__('cluster') : outsideText(each, trans)}</td>
          <td>{each.connections}</td>
          <td>{each.sent === null ? trans.__('not counted') : sizeText(each.sent)}</td>
          <td>{each.received === null ? trans.__('not counted') : sizeText(each.received)}</td>
          <td>{each.node}</td>
        </tr>
      ))}
    </Table>
  );
}

function outsideText(each: IJobConnection, trans: TranslationBundle): string {
  return each.name === '' ? trans.__('▲ outside, name unknown') : trans.__('▲ outside, %1', each.name);
}

function Ports(props: { rows: readonly IJobConnection[]; trans: TranslationBundle }): React.JSX.Element {
  const { rows, trans } = props;
  return (
    <Table heads={[trans.__('Program'), trans.__('Listens on'), trans.__('Port'), trans.__('Node')]}>
      {rows.map(each => (
        <tr key={rowKey(each)}>
          <th scope="row">{program(each, trans)}</th>
          <td>{each.all_interfaces ? trans.__('▲ all interfaces') : each.address}</td>
          <td>{each.port}</td>
          <td>{each.node}</td>
        </tr>
      ))}
    </Table>
  );
}

function program(each: IJobConnection, trans: TranslationBundle): string {
  return each.rank === null ? each.program : trans.__('%1 (rank %2)', each.program, each.rank);
}

function rowKey(each: IJobConnection): string {
  return [each.node, each.direction, each.protocol, each.address, each.port, each.program, each.rank].join(
    ' '
  );
}
