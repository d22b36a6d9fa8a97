import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IJobTopology } from '../api';
import { Notice } from '../common/notice';
import type { JobDocumentModel } from '../job/document';
import type { IJobTab, IJobTabProps } from '../tokens';
import { TopologyView } from '../views/topology/topology';

/** Return the tab "Topology" of the job page. */
export function topologyTab(model: JobDocumentModel<IJobTopology>, trans: TranslationBundle): IJobTab {
  return {
    id: 'topology',
    title: trans.__('Topology'),
    Body: props => <Topology model={model} trans={trans} {...props} />,
    setVisible: visible => {
      model.setVisible(visible);
    }
  };
}

interface IProps extends IJobTabProps {
  readonly model: JobDocumentModel<IJobTopology>;
  readonly trans: TranslationBundle;
}

function Topology(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  return (
    <UseSignal signal={model.changed}>
      {() => (
        <div className="jp-Gipfel-job-topology">
          {model.error !== '' && (
            <Notice error shape="✗" text={model.error}>
              <button className="jp-Gipfel-button" onClick={() => void model.refresh()}>
                {trans.__('Try again')}
              </button>
            </Notice>
          )}
          <Content {...props} />
        </div>
      )}
    </UseSignal>
  );
}

function Content(props: IProps): React.JSX.Element | null {
  const { model, selection, trans } = props;
  const topology = model.value;
  // The same set and list while nothing else is selected: the view redraws when they change.
  const chosen = selection.ranks.join(',');
  const devices = selection.devices.join(',');
  const selects = selection.pick !== null || selection.expression.trim() !== '';
  const selected = React.useMemo(
    () => (selects ? new Set(chosen === '' ? [] : chosen.split(',').map(Number)) : null),
    [selects, chosen]
  );
  const names = React.useMemo(() => (devices === '' ? [] : devices.split(',')), [devices]);
  if (topology === null) {
    return model.error === '' ? <p role="status">◐ {trans.__('Reading the topology…')}</p> : null;
  }
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
