import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ITableRow } from '../api';
import { isPosition } from './columns';
import type { RunsModel } from './model';
import { RunTracking } from './tracking';

const MAX_NAME = 100;
const MAX_TAGS = 820;
const MAX_NOTE = 4000;

/** Actions on a run. */
export interface IRunActions {
  /** Open the run's report in a new tab. */
  openReport(run: string): void;
  /** Copy the link to the report. */
  copyLink(run: string): void;
  /** Show the run's plots; undefined if a site has disabled them. */
  readonly showPlots?: (run: string) => void;
}

interface IProps {
  readonly run: ITableRow;
  readonly model: RunsModel;
  readonly actions: IRunActions;
  readonly trans: TranslationBundle;
}

/** Name, tags and note of a run, which can be edited, its parameters, and buttons for its actions. */
export function RunDetails(props: IProps): React.JSX.Element {
  const { run, actions, trans } = props;
  const button = (text: string, act: (run: string) => void): React.JSX.Element => (
    <button
      className="jp-Gipfel-button"
      onClick={() => {
        act(run.name);
      }}
    >
      {text}
    </button>
  );
  return (
    <div className="jp-Gipfel-runNotes">
      <Notes key={`${run.name} ${run.display_name} ${run.tags.join(' ')} ${run.note}`} {...props} />
      {Object.keys(run.parameters).length > 0 && (
        <dl>
          {Object.entries(run.parameters).map(([name, value]) => (
            <div key={name}>
              <dt>{isPosition(name) ? trans.__('argument %1', Number(name) + 1) : name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      <p className="jp-Gipfel-small">
        {run.folder}
        {run.in_use_reason !== '' && ` · ${trans.__('in use: %1', run.in_use_reason)}`}
      </p>
      <div className="jp-Gipfel-runActions">
        {actions.showPlots && button(trans.__('Show plots'), actions.showPlots)}
        {button(trans.__('Open report'), each => {
          actions.openReport(each);
        })}
        {button(trans.__('Copy link to report'), each => {
          actions.copyLink(each);
        })}
        <RunTracking run={run.name} model={props.model} trans={trans} />
      </div>
    </div>
  );
}

/** The form of the notes; it is saved as a whole. */
function Notes(props: IProps): React.JSX.Element {
  const { run, model, trans } = props;
  const [name, setName] = React.useState(run.display_name);
  const [tags, setTags] = React.useState(run.tags.join(' '));
  const [note, setNote] = React.useState(run.note);
  return (
    <form
      onSubmit={event => {
        event.preventDefault();
        const words = tags.split(/[\s,]+/).filter(each => each !== '');
        void model.change(run.name, { display_name: name.trim(), tags: words, note });
      }}
    >
      <Field
        label={trans.__('Name')}
        value={name}
        maxLength={MAX_NAME}
        placeholder={run.name}
        onChange={setName}
      />
      <Field
        label={trans.__('Tags')}
        value={tags}
        maxLength={MAX_TAGS}
        placeholder={trans.__('separated by spaces')}
        onChange={setTags}
      />
      <label>
        <span>{trans.__('Note')}</span>
        <textarea
          className="jp-Gipfel-field"
          value={note}
          rows={2}
          maxLength={MAX_NOTE}
          onChange={event => {
            setNote(event.target.value);
          }}
        />
      </label>
      <button className="jp-Gipfel-button" type="submit" disabled={model.busy}>
        {trans.__('Save')}
      </button>
    </form>
  );
}

function Field(props: {
  label: string;
  value: string;
  maxLength: number;
  placeholder: string;
  onChange: (value: string) => void;
}): React.JSX.Element {
  const { label, onChange, ...input } = props;
  return (
    <label>
      <span>{label}</span>
      <input
        className="jp-Gipfel-field"
        {...input}
        onChange={event => {
          onChange(event.target.value);
        }}
      />
    </label>
  );
}
