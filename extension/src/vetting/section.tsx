import type { IEditorServices } from '@jupyterlab/codeeditor';
import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { formatLocalTime } from '../common/clock';
import { Notice } from '../common/notice';
import type { ISection } from '../tokens';
import { Report } from '../views/vetting/report';
import { summarizeVetting } from '../views/vetting/summary';
import { ProtocolEditor } from './editor';
import type { VettingModel } from './model';
import { Runner } from './runner';
import { Help } from '../views/term';
import { VERDICT, VETTING_RUN } from '../views/terms';

/** Create the section for vetting the nodes of this job. */
export function vettingSection(
  model: VettingModel,
  trans: TranslationBundle,
  services: IEditorServices
): ISection {
  return {
    id: 'vetting',
    title: trans.__('Vetting'),
    Badge: () => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element | null => <Badge model={model} trans={trans} />}
      </UseSignal>
    ),
    Summary: () => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <Summary model={model} trans={trans} />}
      </UseSignal>
    ),
    Body: () => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <Body model={model} services={services} trans={trans} />}
      </UseSignal>
    ),
    setVisible: visible => {
      model.setVisible(visible);
    }
  };
}

interface IProps {
  readonly model: VettingModel;
  readonly trans: TranslationBundle;
}

/** The symbol of the result, or of a running vetting. */
function Badge(props: IProps): React.JSX.Element | null {
  const { grid, vetting } = props.model;
  if (!grid || !vetting) {
    return null;
  }
  const { shape, text } = summarizeVetting(grid, vetting.state === 'running', props.trans);
  return (
    <span className="jp-Gipfel-tab-badge" title={text} aria-hidden="true">
      {shape}
    </span>
  );
}

/** The result, time, protocol and duration of the vetting, or its progress. */
function Summary(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { grid, vetting } = model;
  if (model.disconnected) {
    return <State name="disconnected">▲ {trans.__('disconnected')}</State>;
  }
  if (!grid || !vetting) {
    return <State name={vetting?.state ?? 'loading'}>{vetting?.state === 'starting' && '◐'}</State>;
  }
  const { state, shape, text } = summarizeVetting(grid, vetting.state === 'running', trans);
  return (
    <State name={state}>
      {shape} {text}
    </State>
  );
}

function State(props: { name: string; children: React.ReactNode }): React.JSX.Element {
  return (
    <span role="status" className="jp-Gipfel-vetting-state" data-state={props.name}>
      {props.children}
    </span>
  );
}

function Body(props: IProps & { services: IEditorServices }): React.JSX.Element {
  const { model, services, trans } = props;
  const { grid } = model;
  return (
    <div className="jp-Gipfel-vetting" aria-busy={model.busy}>
      <p className="jp-Gipfel-small">
        {trans.__('Tests of the job’s nodes')} <Help term={VETTING_RUN} trans={trans} />
        {grid && grid.rows.length > 0 && (
          <>
            {' · '}
            {trans.__('verdicts')} <Help term={VERDICT} trans={trans} />
          </>
        )}
      </p>
      <Notices model={model} trans={trans} />
      {grid && <Report grid={grid} rows={model} trans={trans} />}
      <Runner model={model} trans={trans} />
      {model.draft && <ProtocolEditor draft={model.draft} model={model} services={services} trans={trans} />}
      {model.registry && (
        <label className="jp-Gipfel-vetting-check">
          <input
            type="checkbox"
            checked={model.shares}
            disabled={model.busy}
            onChange={event => {
              void model.share(event.target.checked);
            }}
          />
          <span>{trans.__('Send results to the site’s registry, with my user name')}</span>
        </label>
      )}
    </div>
  );
}

/** Messages about missing or old reports and errors, and what to do next. */
function Notices(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { vetting } = model;
  return (
    <>
      {model.error && <Notice error shape="✗" text={model.error} />}
      {model.disconnected && (
        <Notice shape="▲" text={trans.__('The server is not responding. Retrying…')}>
          <button className="jp-Gipfel-button" onClick={() => void model.refresh()}>
            {trans.__('Try now')}
          </button>
        </Notice>
      )}
      {vetting === null && !model.disconnected && <p>◐ {trans.__('Looking for a report…')}</p>}
      {vetting?.state === 'none' && <p>{trans.__('Not vetted yet. Choose a protocol and press Run.')}</p>}
      {vetting?.state === 'starting' && <p>◐ {trans.__('Starting the vetting…')}</p>}
      {vetting?.state === 'error' && <Notice error shape="✗" text={vetting.problem} />}
      {vetting?.state === 'gone' && (
        <Notice
          shape="▲"
          text={trans.__(
            'This vetting ended without a report; its last update was %1. No node counts as vetted: run it again.',
            formatLocalTime(vetting.updated_ms)
          )}
        />
      )}
    </>
  );
}
