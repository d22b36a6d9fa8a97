import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobConnection, IJobGateRow, IJobNetwork } from '../api';
import { formatTimeOfDay, zoneName } from '../common/clock';
import { Notice } from '../common/notice';
import { Table } from '../common/table';
import { sizeText } from '../communication/matrix';
import type { IDocumentTab } from '../job/document-tab';

/** Rows of the panel's section. */
const MOST_ROWS = 8;

/**
 * Return the tab "Network" of the job page, with a short form for the panel.
 *
 * @param openTab Opens the tab.
 */
export function networkTab(trans: TranslationBundle, openTab: () => void): IDocumentTab<IJobNetwork> {
  return {
    id: 'network',
    title: trans.__('Network'),
    rank: 38,
    reading: trans.__('Reading connections…'),
    Content: ({ value }) => <Content trans={trans} value={value} />,
    Short: ({ value }) => <Short trans={trans} value={value} openTab={openTab} />
  };
}

interface IContentProps {
  readonly trans: TranslationBundle;
  readonly value: IJobNetwork;
}

function Content(props: IContentProps): React.JSX.Element {
  const { trans, value } = props;
  if (isEmpty(value)) {
    return <Nothing trans={trans} />;
  }
  const [peers, ports] = split(value);
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

/** Peers outside of the cluster, what a gate refused, and ports that everybody reaches. */
function Short(props: IContentProps & { openTab: () => void }): React.JSX.Element {
  const { trans, value, openTab } = props;
  if (isEmpty(value)) {
    return <Nothing trans={trans} />;
  }
  const [peers, ports] = split(value);
  const bytes = (each: IJobConnection): number => (each.sent ?? 0) + (each.received ?? 0);
  const outside = peers.filter(each => !each.inside).sort((a, b) => bytes(b) - bytes(a));
  const open = ports.filter(each => each.all_interfaces);
  const refused = value.gate.filter(each => !each.allowed && each.protocol !== 'outside');
  return (
    <>
      {value.closed !== '' && <Notice shape="▲" text={trans.__('The gates are closed: %1.', value.closed)} />}
      <p>
        <strong>
          {value.recorded ? summary(peers, ports, trans) : trans.__('No connections were recorded')}
        </strong>
      </p>
      {value.gate.length > 0 && <p>{gateSummary(value.gate, trans)}</p>}
      {outside.length > 0 && (
        <Table heads={[trans.__('Program'), trans.__('Peer'), trans.__('Sent'), trans.__('Received')]}>
          {outside.slice(0, MOST_ROWS).map(each => (
            <tr key={rowKey(each)}>
              <th scope="row">{program(each, trans)}</th>
              <td>{`${each.name === '' ? each.address : each.name} ${each.port}/${each.protocol}`}</td>
              <td>{volume(each.sent, trans)}</td>
              <td>{volume(each.received, trans)}</td>
            </tr>
          ))}
        </Table>
      )}
      {open.slice(0, MOST_ROWS).map(each => (
        <p key={rowKey(each)}>
          {trans.__('▲ %1 listens on all interfaces, port %2', program(each, trans), each.port)}
        </p>
      ))}
      {refused.slice(0, MOST_ROWS).map(each => (
        <p key={[each.node, each.place, each.protocol].join(' ')}>
          {trans._n('▲ refused once: %2', '▲ refused %1 times: %2', each.count, each.place)}
        </p>
      ))}
      <div className="jp-Gipfel-actions">
        <button className="jp-Gipfel-button" onClick={openTab}>
          {trans.__('All connections on the job page')}
        </button>
      </div>
    </>
  );
}

function isEmpty(value: IJobNetwork): boolean {
  return !value.recorded && !value.gated && value.gate.length === 0;
}

function Nothing(props: { trans: TranslationBundle }): React.JSX.Element {
  const { trans } = props;
  return (
    <Notice
      shape="○"
      text={trans.__('No connections were recorded. The recorder of a job looks for them once a second.')}
    />
  );
}

/** Return the connections with peers, and the ports that programs opened. */
function split(value: IJobNetwork): [peers: IJobConnection[], ports: IJobConnection[]] {
  return [
    value.connections.filter(each => each.direction !== 'listen'),
    value.connections.filter(each => each.direction === 'listen')
  ];
}

function volume(bytes: number | null, trans: TranslationBundle): string {
  return bytes === null ? trans.__('not counted') : sizeText(bytes);
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
    return trans.__('▲ no gate');
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
          <td>{volume(each.sent, trans)}</td>
          <td>{volume(each.received, trans)}</td>
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
