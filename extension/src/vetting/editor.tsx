import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { Notice } from '../notice';
import type { IDraft, VettingModel } from './model';

const ROWS = 16;

interface IEditorProps {
  readonly draft: IDraft;
  readonly model: VettingModel;
  readonly trans: TranslationBundle;
}

/** A protocol as text, with what it means to the server below it. */
export function ProtocolEditor(props: IEditorProps): React.JSX.Element {
  const { draft, model, trans } = props;
  return (
    <form
      className="jp-Gipfel-vetting-editor"
      onSubmit={event => {
        event.preventDefault();
        void model.save();
      }}
    >
      <textarea
        aria-label={trans.__('Protocol')}
        aria-describedby="jp-Gipfel-vetting-meaning"
        aria-invalid={draft.meaning?.valid === false}
        rows={ROWS}
        spellCheck={false}
        wrap="off"
        value={draft.text}
        onChange={event => {
          model.type({ text: event.target.value });
        }}
      />
      <div id="jp-Gipfel-vetting-meaning" role="status">
        <Meaning draft={draft} trans={trans} />
      </div>
      <SaveRow draft={draft} model={model} trans={trans} />
    </form>
  );
}

function SaveRow(props: IEditorProps): React.JSX.Element {
  const { draft, model, trans } = props;
  return (
    <div className="jp-Gipfel-vetting-row">
      <label>
        <span>{trans.__('Beside the notebook as')}</span>
        <input
          className="jp-mod-styled"
          name="protocol-name"
          value={draft.name}
          maxLength={100}
          onChange={event => {
            model.type({ name: event.target.value });
          }}
        />
      </label>
      <button className="jp-mod-styled jp-mod-accept" disabled={model.busy || draft.meaning?.valid !== true}>
        {trans.__('Save')}
      </button>
      <button
        type="button"
        className="jp-mod-styled"
        onClick={() => {
          void model.edit(false);
        }}
      >
        {trans.__('Close')}
      </button>
    </div>
  );
}

function Meaning(props: { draft: IDraft; trans: TranslationBundle }): React.JSX.Element {
  const { draft, trans } = props;
  const { meaning } = draft;
  if (meaning === null) {
    return <p className="jp-Gipfel-small">◐ {trans.__('Reading it…')}</p>;
  }
  return (
    <>
      {meaning.valid && (
        <p className="jp-Gipfel-small">
          ✓ {trans._n('%1 check: %2', '%1 checks: %2', meaning.checks.length, names(meaning.checks))}
        </p>
      )}
      {meaning.problems.map(each => (
        <Notice key={each} shape={meaning.valid ? '▲' : '✗'} text={each} />
      ))}
    </>
  );
}

function names(checks: readonly { readonly name: string }[]): string {
  return checks.map(each => each.name).join(', ');
}
