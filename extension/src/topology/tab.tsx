import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobTopology } from '../api';
import { Notice } from '../common/notice';
import type { IDocumentTab } from '../job/document-tab';
import type { IJobSelection } from '../tokens';
import { TopologyView } from '../views/topology/topology';

/** Return the tab "Topology" of the job page. */
export function topologyTab(trans: TranslationBundle): IDocumentTab<IJobTopology> {
  return {
    id: 'topology',
    title: trans.__('Topology'),
    rank: 30,
    reading: trans.__('Reading the topology…'),
    Content: ({ selection, value }) => <Content selection={selection} topology={value} trans={trans} />
  };
}

interface IProps {
  readonly selection: IJobSelection;
  readonly topology: IJobTopology;
  readonly trans: TranslationBundle;
}

function Content(props: IProps): React.JSX.Element {
  const { selection, topology, trans } = props;
  // The same set and list while nothing else is selected: the view redraws when they change.
  const chosen = selection.ranks.join(',');
  const devices = selection.devices.join(',');
  const selects = selection.pick !== null || selection.expression.trim() !== '';
  const selected = React.useMemo(
    () => (selects ? new Set(chosen === '' ? [] : chosen.split(',').map(Number)) : null),
    [selects, chosen]
  );
  const names = React.useMemo(() => (devices === '' ? [] : devices.split(',')), [devices]);
  if (topology.nodes.length === 0) {
    return (
      <Notice shape="○" text={trans.__('No recorder has stored its node yet.')}>
        <p>
          {trans.__(
            'It appears here seconds after a job or gipfel record has started; older runs have none.'
          )}
        </p>
      </Notice>
    );
  }
  return (
    <TopologyView
      topology={topology}
      selected={selected}
      devices={names}
      trans={trans}
      onChoose={(unit, units, add) => {
        selection.choose(unit, units, add);
      }}
    />
  );
}
