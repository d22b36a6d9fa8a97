import type { IEditorServices } from '@jupyterlab/codeeditor';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IProtocolContent } from '../api';
import { Notice } from '../common/notice';
import type { IDraft, VettingModel } from './model';
import { YamlText, type ILineProblem } from './yaml-editor';

const MEANING = 'jp-Gipfel-vetting-meaning';

interface IEditorProps {
  readonly draft: IDraft;
  readonly model: VettingModel;
  readonly services: IEditorServices;
  readonly trans: TranslationBundle;
}

/** An editor of a protocol's text, with the server's interpretation below it. */
export function ProtocolEditor(props: IEditorProps): React.JSX.Element {
  const { draft, model, services, trans } = props;
  const problems = React.useMemo(() => lineProblemsOf(draft.meaning), [draft.meaning]);
  return (
    <form
      className="jp-Gipfel-vetting-editor"
      onSubmit={event => {
        event.preventDefault();
        void model.save();
      }}
    >
      <YamlText
        services={services}
        text={draft.text}
        problems={problems}
        label={trans.__('Protocol')}
        describedBy={MEANING}
        onChange={text => {
          model.type({ text });
        }}
      />
      <div id={MEANING} role="status">
        <Meaning draft={draft} trans={trans} />
      </div>
      <SaveRow draft={draft} model={model} trans={trans} />
    </form>
  );
}

/** Return each problem with its line; null until the server has checked the text. */
function lineProblemsOf(meaning: IProtocolContent | null): readonly ILineProblem[] | null {
  const found = meaning?.problems.map((text, number) => ({
    line: meaning.lines[number] ?? 0,
    text: text.replace(/^(?:The text, l|L)ine \d+: /, ''),
    error: !meaning.valid
  }));
  return found ?? null;
}

function SaveRow(props: Omit<IEditorProps, 'services'>): React.JSX.Element {
  const { draft, model, trans } = props;
  return (
    <div className="jp-Gipfel-vetting-row">
      <label>
        <span>{trans.__('Save next to the notebook as')}</span>
        <input
          className="jp-Gipfel-field"
          name="protocol-name"
          value={draft.name}
          maxLength={100}
          onChange={event => {
            model.type({ name: event.target.value });
          }}
        />
      </label>
      <button
        className="jp-Gipfel-button jp-mod-accept"
        disabled={model.busy || draft.meaning?.valid !== true}
      >
        {trans.__('Save')}
      </button>
      <button
        type="button"
        className="jp-Gipfel-button"
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
    return <p className="jp-Gipfel-small">◐ {trans.__('Checking the protocol…')}</p>;
  }
  return (
    <>
      {meaning.valid && (
        <p className="jp-Gipfel-small">
          ✓ {trans._n('%1 check: %2', '%1 checks: %2', meaning.checks.length, names(meaning.checks))}
        </p>
      )}
      {meaning.problems.map((each, number) =>
        meaning.lines[number] ? (
          // The editor shows it at its line too.
          <p key={each} className="jp-Gipfel-small">
            <span aria-hidden="true">{meaning.valid ? '▲' : '✗'}</span> {each}
          </p>
        ) : (
          <Notice key={each} shape={meaning.valid ? '▲' : '✗'} text={each} />
        )
      )}
    </>
  );
}

function names(checks: readonly { readonly name: string }[]): string {
  return checks.map(each => each.name).join(', ');
}
