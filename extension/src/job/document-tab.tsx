import type { JupyterFrontEnd } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../common/notice';
import { requestJson } from '../common/request';
import type { IGipfelJob, IJobTab, IJobTabProps, ISection } from '../tokens';
import { JobDocumentModel } from './document';

/** A tab of the job page that shows one document on the run. */
export interface IDocumentTab<T> {
  /** Also the route below `job/` that returns the document. */
  readonly id: string;
  readonly title: string;
  /** Place among the tabs. */
  readonly rank: number;
  /** Shown until the first response. */
  readonly reading: string;
  /** True if the document has figures, which are drawn for a dark or a light page. */
  readonly themed?: boolean;
  readonly Content: React.ComponentType<IJobTabProps & { readonly value: T }>;
}

/** Add a tab that requests its document while it is visible; it says what failed, and offers to try again. */
export function addDocumentTab<T>(
  app: JupyterFrontEnd,
  job: IGipfelJob,
  trans: TranslationBundle,
  tab: IDocumentTab<T>
): void {
  const { id, title, rank } = tab;
  const { Body, setVisible } = documentView(app, job, trans, tab, id);
  job.addTab({ id, title, Body, setVisible }, { rank });
}

/** Return a section of the panel with the document of a tab, for the run that the job page shows. */
export function documentSection<T>(
  app: JupyterFrontEnd,
  job: IGipfelJob,
  trans: TranslationBundle,
  tab: IDocumentTab<T>
): ISection {
  const { id, title } = tab;
  const { selection, state } = job;
  const { Body, setVisible } = documentView(app, job, trans, tab, `${id}-section`);
  const Section = (): React.JSX.Element => (
    <UseSignal signal={selection.changed}>
      {() => (
        <>
          {selection.run !== '' && (
            <p className="jp-Gipfel-pad">{trans.__('Run %1, as on the job page', selection.run)}</p>
          )}
          <Body selection={selection} state={state} />
        </>
      )}
    </UseSignal>
  );
  return { id, title, Body: Section, setVisible };
}

/** Return a view of a document with a model of its own, called `name`. */
function documentView<T>(
  app: JupyterFrontEnd,
  job: IGipfelJob,
  trans: TranslationBundle,
  tab: IDocumentTab<T>,
  name: string
): Required<Pick<IJobTab, 'Body' | 'setVisible'>> {
  const { id, themed = false } = tab;
  const settings = app.serviceManager.serverSettings;
  const model = new JobDocumentModel<T>(
    ({ run, launch, layout, dark }) => {
      const words = {
        run,
        layout,
        ...(themed ? { dark: dark ? '1' : '0' } : {}),
        ...(launch === '' ? {} : { launch })
      };
      return requestJson<T>(settings, `job/${id}${URLExt.objectToQueryString(words)}`);
    },
    job.selection,
    job.state,
    { name, themed }
  );
  const setVisible = (visible: boolean): void => {
    model.setVisible(visible);
  };
  const Body = (props: IJobTabProps): React.JSX.Element => (
    <DocumentFrame model={model} tab={tab} trans={trans} {...props} />
  );
  return { Body, setVisible };
}

interface IFrameProps<T> extends IJobTabProps {
  readonly model: JobDocumentModel<T>;
  readonly tab: IDocumentTab<T>;
  readonly trans: TranslationBundle;
}

function DocumentFrame<T>(props: IFrameProps<T>): React.JSX.Element {
  const { model, tab, trans, selection, state } = props;
  return (
    <UseSignal signal={model.changed}>
      {() => (
        <div className={`jp-Gipfel-job-document jp-Gipfel-job-${tab.id}`}>
          {model.error !== '' && (
            <Notice error shape="✗" text={model.error}>
              <button className="jp-Gipfel-button" onClick={() => void model.refresh()}>
                {trans.__('Try again')}
              </button>
            </Notice>
          )}
          {model.value !== null ? (
            <tab.Content selection={selection} state={state} value={model.value} />
          ) : (
            model.error === '' && <p role="status">◐ {tab.reading}</p>
          )}
        </div>
      )}
    </UseSignal>
  );
}
