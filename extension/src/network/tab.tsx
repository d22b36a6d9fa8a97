import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobConnection, IJobNetwork } from '../api';
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
  if (!value.recorded) {
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
      <h3>{summary(peers, ports, trans)}</h3>
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
          'Seen once a second, without names of peers. Connections within a node, and RDMA, are not seen.'
        )}
      </p>
    </>
  );
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
          <td>{each.inside ? trans.__('cluster') : trans.__('▲ outside, name unknown')}</td>
          <td>{each.connections}</td>
          <td>{each.sent === null ? trans.__('not counted') : sizeText(each.sent)}</td>
          <td>{each.received === null ? trans.__('not counted') : sizeText(each.received)}</td>
          <td>{each.node}</td>
        </tr>
      ))}
    </Table>
  );
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
