import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { protocolKey, type VettingModel } from './model';
import { Help } from '../views/term';
import { PROTOCOL } from '../views/terms';

interface IProps {
  readonly model: VettingModel;
  readonly trans: TranslationBundle;
}

/** Choice of the protocol, of re-testing recently vetted nodes, and the buttons. */
export function Runner(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  return (
    <>
      <div className="jp-Gipfel-vetting-row">
        <ProtocolChoice model={model} trans={trans} />
        <Help term={PROTOCOL} trans={trans} />
        <label>
          <span>{trans.__('Recently vetted nodes')}</span>
          <select
            className="jp-Gipfel-field"
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
      <p className="jp-Gipfel-small">
        {model.protocol?.problem}
        {model.protocol?.description}
      </p>
      <Buttons model={model} trans={trans} />
    </>
  );
}

/** The protocols, grouped by their location. */
function ProtocolChoice(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const kinds = {
    notebook: trans.__('Next to the notebook'),
    user: trans.__('Yours'),
    shipped: trans.__('Shipped')
  };
  return (
    <label>
      <span>{trans.__('Protocol')}</span>
      <select
        className="jp-Gipfel-field"
        name="protocol"
        value={model.chosen}
        disabled={model.protocols === null}
        onFocus={() => void model.listProtocols()}
        onChange={event => {
          model.choose(event.target.value);
        }}
      >
        {(['notebook', 'user', 'shipped'] as const).map(kind => {
          const some = (model.protocols ?? []).filter(each => each.kind === kind);
          return some.length === 0 ? null : (
            <optgroup key={kind} label={kinds[kind]}>
              {some.map(each => (
                <option key={protocolKey(each)} value={protocolKey(each)}>
                  {each.name}
                </option>
              ))}
            </optgroup>
          );
        })}
      </select>
    </label>
  );
}

function Buttons(props: IProps): React.JSX.Element {
  const { model, trans } = props;
  const unsaved = model.draft?.changed === true;
  return (
    <div className="jp-Gipfel-vetting-row">
      {model.vetting?.can_stop ? (
        <button
          className="jp-Gipfel-button jp-mod-warn"
          disabled={model.busy}
          onClick={() => void model.stop()}
        >
          {trans.__('Stop')}
        </button>
      ) : (
        <button
          className="jp-Gipfel-button jp-mod-accept"
          disabled={model.busy || model.isRunning || unsaved || !model.protocol}
          title={unsaved ? trans.__('Save the protocol first.') : ''}
          onClick={() => void model.run()}
        >
          {trans.__('Run')}
        </button>
      )}
      {!model.draft && (
        <button
          className="jp-Gipfel-button"
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
