import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { ILimits } from '../api';
import { Notice } from '../common/notice';
import type { ISection } from '../tokens';
import type { WorkloadList } from './list';
import { Limits } from './limits';
import { Help } from '../views/term';
import { WORKLOAD } from '../views/terms';

interface IProps {
  readonly list: WorkloadList;
  readonly trans: TranslationBundle;
}

/**
 * Create the section that lists workloads of all kinds, with the number of running ones in its tab.
 *
 * @param fetchLimits - Request the limits of the user's jobs and the storage quota, as in `gipfel quota`.
 */
export function workloadsSection(
  list: WorkloadList,
  trans: TranslationBundle,
  fetchLimits: () => Promise<ILimits>
): ISection {
  return {
    id: 'workloads',
    title: trans.__('Workloads'),
    Badge: () => (
      <UseSignal signal={list.changed}>
        {(): React.JSX.Element | null =>
          list.running > 0 ? (
            <span className="jp-Gipfel-tab-badge" title={trans.__('%1 running', list.running)}>
              {list.running}
            </span>
          ) : null
        }
      </UseSignal>
    ),
    Body: () => (
      <UseSignal signal={list.changed}>
        {(): React.JSX.Element => <Body list={list} trans={trans} fetchLimits={fetchLimits} />}
      </UseSignal>
    ),
    setVisible: visible => {
      list.setVisible(visible);
    }
  };
}

function Body({
  list,
  trans,
  fetchLimits
}: IProps & { readonly fetchLimits: () => Promise<ILimits> }): React.JSX.Element {
  const { rows, shownKinds } = list;
  // A kind without `emptyText` can't be started from here: the filter has it only once there is a workload of it.
  const filterKinds = list.kinds.filter(each => each.emptyText !== '' || (each.rows() ?? []).length > 0);
  const errors = [...new Set(shownKinds.map(each => each.error()))].filter(each => each !== '');
  return (
    <div className="jp-Gipfel-work">
      {filterKinds.length > 1 && <KindChoice list={list} kinds={filterKinds} trans={trans} />}
      {errors.map(each => (
        <Notice key={each} shape="✗" text={each} error />
      ))}
      {rows === null && errors.length === 0 && <p>{trans.__('Loading your workloads…')}</p>}
      {rows?.length === 0 && (
        <>
          <p>{trans.__('None yet.')}</p>
          {shownKinds
            .filter(each => each.emptyText !== '')
            .map(each => (
              <p key={each.id}>{each.emptyText}</p>
            ))}
        </>
      )}
      {rows?.map(each => (
        <React.Fragment key={each.key}>{each.render()}</React.Fragment>
      ))}
      {shownKinds.map(({ id, Footer }) => Footer && <Footer key={id} />)}
      <Limits fetchLimits={fetchLimits} trans={trans} />
    </div>
  );
}

/** The filter by kind. */
function KindChoice(props: IProps & { readonly kinds: WorkloadList['kinds'] }): React.JSX.Element {
  const { list, kinds, trans } = props;
  return (
    <div className="jp-Gipfel-work-filter">
      <label>
        <span>{trans.__('Kind')}</span>
        <select
          className="jp-Gipfel-field"
          name="kind"
          value={list.chosen}
          onChange={event => {
            list.choose(event.target.value);
          }}
        >
          <option value="">{trans.__('all')}</option>
          {kinds.map(each => (
            <option key={each.id} value={each.id}>
              {each.title}
            </option>
          ))}
        </select>
      </label>
      <Help term={WORKLOAD} trans={trans} />
    </div>
  );
}
