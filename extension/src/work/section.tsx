import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../common/notice';
import type { ISection } from '../tokens';
import type { WorkModel } from './model';

/** The parts of a list that depend on the kind of workload. */
export interface IWorkListOptions<T> {
  /** ID in the page, such as `launches`. */
  readonly id: string;
  readonly title: string;
  /** Text before the first response. */
  readonly loadingText: string;
  /** Text of an empty list: how to start a workload. */
  readonly emptyText: string;
  /** Return the React key of an item. */
  readonly keyOf: (item: T) => string;
  readonly render: (item: T) => React.JSX.Element;
  /** Element below the list. */
  readonly footer?: React.ReactNode;
}

/** Create a section that lists one kind of workload, with the number of running ones next to its heading. */
export function workSection<T>(
  model: WorkModel<T>,
  trans: TranslationBundle,
  work: IWorkListOptions<T>
): ISection {
  return {
    id: work.id,
    title: work.title,
    Summary: (): React.JSX.Element => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => (
          <span role="status">{model.running > 0 ? trans.__('%1 running', model.running) : ''}</span>
        )}
      </UseSignal>
    ),
    Body: (): React.JSX.Element => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <WorkList model={model} work={work} />}
      </UseSignal>
    ),
    setVisible: visible => {
      model.setVisible(visible);
    }
  };
}

function WorkList<T>(props: { model: WorkModel<T>; work: IWorkListOptions<T> }): React.JSX.Element {
  const { model, work } = props;
  return (
    <div className={`jp-Gipfel-work jp-Gipfel-${work.id}`}>
      {model.error && <Notice shape="✗" text={model.error} error />}
      {model.items === null && !model.error && <p>{work.loadingText}</p>}
      {model.items?.length === 0 && <p>{work.emptyText}</p>}
      {model.items?.map(item => (
        <React.Fragment key={work.keyOf(item)}>{work.render(item)}</React.Fragment>
      ))}
      {work.footer}
    </div>
  );
}
