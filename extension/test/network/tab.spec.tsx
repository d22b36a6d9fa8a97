import type { JupyterFrontEnd } from '@jupyterlab/application';
import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { renderToStaticMarkup } from 'react-dom/server';

import type { IJobConnection, IJobNetwork } from '../../src/api';
import { requestJson } from '../../src/common/request';
import { addDocumentTab } from '../../src/job/document-tab';
import { JobSelection } from '../../src/job/selection';
import { networkTab } from '../../src/network/tab';
import type { IGipfelJob, IJobTab } from '../../src/tokens';

jest.mock('../../src/common/request', () => ({ requestJson: jest.fn(() => Promise.resolve({})) }));

const trans = nullTranslator.load('gipfel');
const connection: IJobConnection = {
  node: 'nid001',
  direction: 'out',
  protocol: 'tcp',
  address: '203.0.113.5',
  name: '',
  port: 443,
  program: 'python',
  rank: 3,
  connections: 1,
  sent: 3_200_000,
  received: null,
  first_ms: 0,
  last_ms: 0,
  inside: false,
  all_interfaces: false
};
const gated = { node: 'nid001', protocol: 'tcp', reason: '', sent: 0, received: 0, first_ms: 0, last_ms: 0 };
const network: IJobNetwork = {
  recorded: true,
  connections: [
    connection,
    { ...connection, address: '10.0.0.2', inside: true },
    { ...connection, direction: 'listen', port: 8080, address: '0.0.0.0', all_interfaces: true }
  ],
  gated: true,
  gate: [
    { ...gated, place: 'files.example:22', allowed: false, count: 2 },
    { ...gated, place: 'data.example:443', allowed: true, count: 1 }
  ],
  closed: '',
  left_out: 0,
  notes: []
};

function short(value: IJobNetwork): string {
  const { Short } = networkTab(trans, () => undefined);
  const props = { value } as unknown as React.ComponentProps<NonNullable<typeof Short>>;
  return Short === undefined ? '' : renderToStaticMarkup(<Short {...props} />).replaceAll(/<[^>]*>/g, ' ');
}

describe('The section "Network" of the panel', () => {
  it('shows peers outside of the cluster, open ports, and what a gate refused', () => {
    const text = short(network);
    expect(text).toContain('1 peer outside of the cluster');
    expect(text).toContain('python (rank 3)');
    expect(text).toContain('203.0.113.5 443/tcp');
    expect(text).toContain('not counted');
    expect(text).not.toContain('10.0.0.2');
    expect(text).toContain('▲ python (rank 3) listens on all interfaces, port 8080');
    expect(text).toContain('▲ refused 2 times: files.example:22');
    expect(text).not.toContain('data.example');
  });

  it('says that nothing was recorded', () => {
    const empty = { ...network, recorded: false, gated: false, connections: [], gate: [] };
    expect(short(empty)).toContain('No connections were recorded');
  });

  it('shares its requests with the tab', async () => {
    const app = { serviceManager: { serverSettings: {} } } as unknown as JupyterFrontEnd;
    const tabs: IJobTab[] = [];
    const job = {
      selection: new JobSelection(),
      state: { job: null },
      addTab: (tab: IJobTab) => tabs.push(tab)
    } as unknown as IGipfelJob;
    const section = addDocumentTab(
      app,
      job,
      trans,
      networkTab(trans, () => undefined)
    );
    section.setVisible?.(true);
    tabs[0]?.setVisible?.(true);
    await new Promise(resolve => setTimeout(resolve, 50));
    expect(requestJson).toHaveBeenCalledTimes(1);
    section.setVisible?.(false);
    tabs[0]?.setVisible?.(false);
  });
});
