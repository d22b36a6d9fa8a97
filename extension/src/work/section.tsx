import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../common/notice';
import type { ISection } from '../tokens';
import type { WorkModel } from './model';

/** What one kind of work adds to the list. */
export interface IWork<T> {
  /** Names it in the page, such as `launches`. */
  readonly id: string;
  readonly title: string;
  /** Said before the first answer. */
  readonly asking: string;
  /** Said where there is none; how to begin one. */
  readonly none: string;
  /** What React tells one from the other by. */
  readonly keyOf: (item: T) => string;
  readonly show: (item: T) => React.JSX.Element;
  /** What stands below the list. */
  readonly footer?: React.ReactNode;
}

/** A section that lists one kind of work; how much of it runs stands beside its heading. */
export function workSection<T>(model: WorkModel<T>, trans: TranslationBundle, work: IWork<T>): ISection {
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

function WorkList<T>(props: { model: WorkModel<T>; work: IWork<T> }): React.JSX.Element {
  const { model, work } = props;
  return (
    <div className={`jp-Gipfel-work jp-Gipfel-${work.id}`}>
      {model.error && <Notice shape="✗" text={model.error} error />}
      {model.items === null && !model.error && <p>{work.asking}</p>}
      {model.items?.length === 0 && <p>{work.none}</p>}
      {model.items?.map(item => (
        <React.Fragment key={work.keyOf(item)}>{work.show(item)}</React.Fragment>
      ))}
      {work.footer}
    </div>
  );
}
