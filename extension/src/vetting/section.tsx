import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { TranslationBundle } from '@jupyterlab/translation';
import { UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Notice } from '../notice';
import type { ISection } from '../section';
import { ProtocolEditor } from './editor';
import { Culprits, Grid, SHAPES, wordOf } from './grid';
import { nameOf, VettingModel } from './model';
import { type IGrid, VettingRequests, type Word } from './requests';

/** The panel's section on whether the nodes of this job are fit. */
export function vettingSection(app: JupyterFrontEnd, trans: TranslationBundle): ISection {
  const directory = (): string => {
    const { context } = (app.shell.currentWidget ?? {}) as { context?: { path?: string } };
    const path = context?.path ?? '';
    return path.includes('/') ? path.slice(0, path.lastIndexOf('/')) : '';
  };
  const model = new VettingModel(new VettingRequests(app.serviceManager.serverSettings), directory);
  return {
    id: 'vetting',
    title: trans.__('Vetting'),
    Summary: () => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <Summary model={model} trans={trans} />}
      </UseSignal>
    ),
    Body: () => (
      <UseSignal signal={model.changed}>
        {(): React.JSX.Element => <Body model={model} trans={trans} />}
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

/** What came of it, when, by which protocol, how long it took; or how far it is. */
function Summary(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { grid, vetting } = model;
  if (model.unheard) {
    return <State name="unheard">▲ {trans.__('no answer')}</State>;
  }
  if (!grid || !vetting) {
    return <State name={vetting?.state ?? 'loading'}>{vetting?.state === 'starting' && '◐'}</State>;
  }
  if (vetting.state === 'running') {
    return (
      <State name="running">
        ◐ {trans.__('%1 of %2 nodes done (%3)', grid.done, grid.nodes, grid.protocol)}
      </State>
    );
  }
  const seconds = Math.round(((grid.ended_ns ?? grid.started_ns) - grid.started_ns) / 1e9);
  const good = grid.complete && grid.vetted === grid.nodes;
  return (
    <State name={good ? 'good' : 'bad'}>
      {good ? '✓' : '✗'}{' '}
      {trans.__(
        '%1 of %2 nodes vetted %3 (%4, %5 s)',
        grid.vetted,
        grid.nodes,
        clock(grid.started_ns),
        grid.protocol,
        seconds
      )}
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

function Body(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { grid } = model;
  return (
    <div className="jp-Gipfel-vetting" aria-busy={model.busy}>
      <Notices model={model} trans={trans} />
      {grid && <Report grid={grid} model={model} trans={trans} />}
      <Runner model={model} trans={trans} />
      {model.draft && <ProtocolEditor draft={model.draft} model={model} trans={trans} />}
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

/** What is missing, old or went wrong, and what to do next. */
function Notices(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const { vetting } = model;
  return (
    <>
      {model.error && <Notice error shape="✗" text={model.error} />}
      {model.unheard && (
        <Notice shape="▲" text={trans.__('The notebook server does not answer. Trying again by itself.')}>
          <button className="jp-mod-styled" onClick={() => void model.refresh()}>
            {trans.__('Try now')}
          </button>
        </Notice>
      )}
      {vetting === null && !model.unheard && <p>◐ {trans.__('Looking for a report…')}</p>}
      {vetting?.state === 'none' && (
        <p>{trans.__('No node of this job was vetted yet. Choose a protocol and press Run.')}</p>
      )}
      {vetting?.state === 'starting' && <p>◐ {trans.__('The vetting starts…')}</p>}
      {vetting?.state === 'error' && <Notice error shape="✗" text={vetting.problem} />}
      {vetting?.state === 'gone' && (
        <Notice
          shape="▲"
          text={trans.__('This vetting ended without saying so, last heard of %1. No node counts as vetted: run it again.', clock(vetting.heard_ms * 1e6))}
        />
      )}
    </>
  );
}

/** The report: grid, what is left out of it, culprits, what to do with them. */
function Report(props: { grid: IGrid; model: VettingModel; trans: TranslationBundle }): React.JSX.Element {
  const { grid, model, trans } = props;
  const more = Object.entries(grid.more) as [Word, number][];
  const hidden = more.reduce((sum, [, count]) => sum + count, 0);
  return (
    <>
      {grid.rows.length > 0 && <Grid grid={grid} trans={trans} />}
      {(hidden > 0 || model.all) && (
        <p className="jp-Gipfel-vetting-row">
          <span>
            {more
              .map(([word, count]) => `${SHAPES[word]} ${trans.__('%1 more: %2', count, wordOf(word, trans))}`)
              .join(' · ')}
          </span>
          <button
            className="jp-Gipfel-button"
            onClick={() => {
              model.showAll(hidden > 0);
            }}
          >
            {hidden > 0 ? trans.__('Show all nodes') : trans.__('Show fewer')}
          </button>
        </p>
      )}
      {grid.culprits.length > 0 && (
        <Culprits culprits={grid.culprits} more={grid.more_culprits} trans={trans} />
      )}
      {grid.outcome && <p>{grid.outcome}</p>}
      {grid.exclude && <Exclude exclude={grid.exclude} trans={trans} />}
      {grid.notes.length > 0 && (
        <details>
          <summary>{trans._n('%1 note', '%1 notes', grid.notes.length)}</summary>
          <ul>
            {grid.notes.map(note => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

/** The option that keeps a job off the bad nodes, to copy. */
function Exclude(props: { exclude: string; trans: TranslationBundle }): React.JSX.Element {
  const { exclude, trans } = props;
  const [copied, setCopied] = React.useState('');
  const option = `--exclude=${exclude}`;
  const copy = (): void => {
    // Only pages with a certificate, and this machine's own, have a clipboard.
    const written = (navigator.clipboard as Clipboard | undefined)?.writeText(option) ?? Promise.reject();
    written.then(
      () => {
        setCopied(trans.__('✓ copied'));
      },
      () => {
        setCopied(trans.__('Select it, and copy it by Ctrl-C.'));
      }
    );
  };
  return (
    <p className="jp-Gipfel-vetting-row">
      <code>{option}</code>
      <button className="jp-Gipfel-button" onClick={copy}>
        {trans.__('Copy')}
      </button>
      <span role="status">{copied}</span>
    </p>
  );
}

/** Which protocol, whether good nodes of late are tested again, and the buttons. */
function Runner(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const kinds = {
    beside: trans.__('Beside the notebook'),
    own: trans.__('Yours'),
    shipped: trans.__('Shipped')
  };
  return (
    <>
      <div className="jp-Gipfel-vetting-row">
        <label>
          <span>{trans.__('Protocol')}</span>
          <select
            className="jp-mod-styled"
            name="protocol"
            value={model.chosen}
            disabled={model.protocols === null}
            onFocus={() => void model.listProtocols()}
            onChange={event => {
              model.choose(event.target.value);
            }}
          >
            {(['beside', 'own', 'shipped'] as const).map(kind => {
              const some = (model.protocols ?? []).filter(each => each.kind === kind);
              return some.length === 0 ? null : (
                <optgroup key={kind} label={kinds[kind]}>
                  {some.map(each => (
                    <option key={nameOf(each)} value={nameOf(each)}>
                      {each.name}
                    </option>
                  ))}
                </optgroup>
              );
            })}
          </select>
        </label>
        <label>
          <span>{trans.__('Nodes vetted lately')}</span>
          <select
            className="jp-mod-styled"
            name="skip-vetted"
            value={model.skipVetted}
            onChange={event => {
              model.setSkipVetted(event.target.value);
            }}
          >
            <option value="">{trans.__('test again')}</option>
            <option value="1 h">{trans.__('skip for 1 h')}</option>
            <option value="24 h">{trans.__('skip for a day')}</option>
          </select>
        </label>
      </div>
      <p className="jp-Gipfel-small">{model.protocol?.problem || model.protocol?.description}</p>
      <Buttons model={model} trans={trans} />
    </>
  );
}

function Buttons(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const unsaved = model.draft?.changed === true;
  return (
    <div className="jp-Gipfel-vetting-row">
      {model.vetting?.own ? (
        <button className="jp-mod-styled jp-mod-warn" disabled={model.busy} onClick={() => void model.stop()}>
          {trans.__('Stop')}
        </button>
      ) : (
        <button
          className="jp-mod-styled jp-mod-accept"
          disabled={model.busy || model.runs || unsaved || !model.protocol}
          title={unsaved ? trans.__('Save the protocol first.') : ''}
          onClick={() => void model.run()}
        >
          {trans.__('Run')}
        </button>
      )}
      {!model.draft && (
        <button
          className="jp-mod-styled"
          disabled={model.busy || !model.protocol}
          onClick={() => void model.edit(true)}
        >
          {trans.__('Edit the protocol')}
        </button>
      )}
      {unsaved && <span className="jp-Gipfel-small">{trans.__('Save the protocol before it can run.')}</span>}
    </div>
  );
}

/** A time of the clock here; with the day where it was another one. */
function clock(ns: number): string {
  const time = new Date(ns / 1e6);
  const today = time.toDateString() === new Date().toDateString();
  const minutes = time.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  return today ? minutes : `${time.toLocaleDateString()} ${minutes}`;
}
