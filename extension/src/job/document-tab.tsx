import type { JupyterFrontEnd } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../common/notice';
import { requestJson } from '../common/request';
import type { IGipfelJob, IJobTabProps, ISection } from '../tokens';
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
  /** The content in the panel, which is narrow; by default `Content`. */
  readonly Short?: React.ComponentType<IJobTabProps & { readonly value: T }>;
}

/**
 * Add a tab that requests its document while it is visible; it says what failed, and offers to try again.
 *
 * Returns a section of the panel for the same run, which shares the document and its requests with the tab.
 */
export function addDocumentTab<T>(
  app: JupyterFrontEnd,
  job: IGipfelJob,
  trans: TranslationBundle,
  tab: IDocumentTab<T>
): ISection {
  const { id, title, rank } = tab;
  const { selection, state } = job;
  const model = documentModel(app, job, tab);
  const visibleIn = new Set<string>();
  const setVisibleIn = (place: string, visible: boolean): void => {
    if (visible) {
      visibleIn.add(place);
    } else {
      visibleIn.delete(place);
    }
    model.setVisible(visibleIn.size > 0);
  };
  const Body = (props: IJobTabProps): React.JSX.Element => (
    <DocumentFrame model={model} tab={tab} trans={trans} {...props} />
  );
  job.addTab(
    {
      id,
      title,
      Body,
      setVisible: visible => {
        setVisibleIn('tab', visible);
      }
    },
    { rank }
  );
  const short = { ...tab, Content: tab.Short ?? tab.Content };
  return {
    id,
    title,
    Body: () => <Section model={model} tab={short} trans={trans} selection={selection} state={state} />,
    setVisible: visible => {
      setVisibleIn('section', visible);
    }
  };
}

/** A document in the panel, which names the run unless it is that of this server. */
function Section<T>(props: IFrameProps<T>): React.JSX.Element {
  const { trans, selection } = props;
  return (
    <UseSignal signal={selection.changed}>
      {() => (
        <>
          {selection.run !== '' && (
            <p className="jp-Gipfel-pad">{trans.__('Run %1, as on the job page', selection.run)}</p>
          )}
          <DocumentFrame {...props} />
        </>
      )}
    </UseSignal>
  );
}

/** Return the model of a tab's document. */
function documentModel<T>(app: JupyterFrontEnd, job: IGipfelJob, tab: IDocumentTab<T>): JobDocumentModel<T> {
  const { id, themed = false } = tab;
  const settings = app.serviceManager.serverSettings;
  return new JobDocumentModel<T>(
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
    { name: id, themed }
  );
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
