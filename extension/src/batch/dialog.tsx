import type { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IBatchForm, IBatchRequest, IParameter } from '../api';

/** The values of the fields, as typed. */
export interface IBatchValues {
  readonly parameters: Readonly<Record<string, string>>;
  readonly scheduler: string;
  readonly edf: string;
  readonly nodes: string;
  readonly gpus: string;
  readonly time: string;
  readonly partition: string;
  readonly account: string;
  readonly output: string;
  readonly resume: boolean;
}

/** The form of a batch job; it starts with the values `typed` and shows their error `problem`. */
export class BatchDialogBody extends ReactWidget implements Dialog.IBodyWidget<IBatchRequest> {
  constructor(
    private readonly _path: string,
    private readonly _form: IBatchForm,
    private readonly _trans: TranslationBundle,
    typed?: IBatchValues,
    private readonly _problem = ''
  ) {
    super();
    this.addClass('jp-Gipfel-batch-dialog');
    const folder = _path.includes('/') ? _path.slice(0, _path.lastIndexOf('/') + 1) : '';
    this._values = typed ?? {
      parameters: {},
      scheduler: _form.scheduler,
      edf: _form.edf,
      nodes: '1',
      gpus: '0',
      time: '',
      partition: '',
      account: '',
      output: folder + _form.output,
      resume: false
    };
  }

  /** The current values, for another form. */
  get values(): IBatchValues {
    return this._values;
  }

  /** Return the request; empty parameters keep the values of the notebook. */
  getValue(): IBatchRequest {
    const { parameters, scheduler, edf, nodes, gpus, time, partition, account, output, resume } =
      this._values;
    const given = Object.entries(parameters).filter(([, value]) => value !== '');
    const grid = given.filter(([, value]) => value.startsWith('*'));
    // Fields that are hidden for this machine keep the values typed for Slurm.
    const slurm = scheduler !== 'local';
    return {
      path: this._path,
      output,
      parameters: Object.fromEntries(given.filter(([, value]) => !value.startsWith('*'))),
      grid: Object.fromEntries(grid.map(([name, value]) => [name, value.slice(1).trim()])),
      scheduler,
      edf,
      nodes: slurm ? Number(nodes) || 1 : 1,
      gpus_per_node: Number(gpus) || 0,
      time: time.trim(),
      partition: slurm ? partition.trim() : '',
      account: slurm ? account.trim() : '',
      resume
    };
  }

  protected override render(): React.JSX.Element {
    return (
      <>
        {this._problem && (
          // Not a Notice: JupyterLab's dialog can't be submitted while it contains jp-mod-error.
          <p className="jp-Gipfel-batch-problem" role="alert">
            <span aria-hidden="true">✗</span> {this._problem}
          </p>
        )}
        <BatchFields
          form={this._form}
          first={this._values}
          trans={this._trans}
          onChange={values => {
            this._values = values;
          }}
        />
      </>
    );
  }

  private _values: IBatchValues;
}

function BatchFields(props: {
  form: IBatchForm;
  first: IBatchValues;
  trans: TranslationBundle;
  onChange: (values: IBatchValues) => void;
}): React.JSX.Element {
  const { form, trans, onChange } = props;
  const [state, setState] = React.useState(props.first);
  const change = (part: Partial<IBatchValues>): void => {
    const next = { ...state, ...part };
    setState(next);
    onChange(next);
  };
  return (
    <div className="jp-Gipfel-batch-fields">
      {form.parameters.length > 0 && (
        <fieldset>
          <legend>{trans.__('Parameters')}</legend>
          {form.parameters.map(each => (
            <ParameterField
              key={each.name}
              parameter={each}
              value={state.parameters[each.name] ?? ''}
              onChange={value => {
                change({ parameters: { ...state.parameters, [each.name]: value } });
              }}
            />
          ))}
          <p>{trans.__("Leave empty for the notebook's value. For a sweep: * 0.1,0.01 or * 0..3")}</p>
        </fieldset>
      )}
      <JobFields form={form} state={state} trans={trans} change={change} />
    </div>
  );
}

function JobFields(props: {
  form: IBatchForm;
  state: IBatchValues;
  trans: TranslationBundle;
  change: (part: Partial<IBatchValues>) => void;
}): React.JSX.Element {
  const { form, state, trans, change } = props;
  const text = (name: TextName, label: string, hint = ''): React.JSX.Element => (
    <TextField name={name} label={label} hint={hint} value={state[name]} change={change} />
  );
  return (
    <fieldset>
      <legend>{trans.__('Job')}</legend>
      <WhereField {...props} />
      {text('edf', trans.__('Environment (EDF)'), trans.__('none: without a container'))}
      <datalist id="jp-Gipfel-edfs">
        {form.edfs.map(each => (
          <option key={each} value={each} />
        ))}
      </datalist>
      {text('gpus', trans.__('GPUs per node'))}
      {state.scheduler !== 'local' && (
        <>
          {text('nodes', trans.__('Nodes'))}
          {text('partition', trans.__('Partition'), trans.__('cluster default'))}
          {text('account', trans.__('Account'), trans.__('your default'))}
        </>
      )}
      {text('time', trans.__('Time'), trans.__('default; for example 01:30:00'))}
      {text('output', trans.__('Save result as'))}
      <label className="jp-mod-check">
        <input
          type="checkbox"
          name="resume"
          checked={state.resume}
          onChange={event => {
            change({ resume: event.target.checked });
          }}
        />
        <span>{trans.__("Resume: keep finished cells, and run only those tagged 'setup' again")}</span>
      </label>
    </fieldset>
  );
}

function WhereField(props: {
  form: IBatchForm;
  state: IBatchValues;
  trans: TranslationBundle;
  change: (part: Partial<IBatchValues>) => void;
}): React.JSX.Element {
  const { form, state, trans, change } = props;
  return (
    <label>
      <span>{trans.__('Where')}</span>
      <select
        className="jp-Gipfel-field"
        name="scheduler"
        value={state.scheduler}
        onChange={event => {
          change({ scheduler: event.target.value });
        }}
      >
        {form.schedulers.map(each => (
          <option key={each} value={each}>
            {each === 'local' ? trans.__('this machine') : trans.__('Slurm')}
          </option>
        ))}
      </select>
    </label>
  );
}

type TextName = 'edf' | 'nodes' | 'gpus' | 'time' | 'partition' | 'account' | 'output';

function TextField(props: {
  name: TextName;
  label: string;
  hint: string;
  value: string;
  change: (part: Partial<IBatchValues>) => void;
}): React.JSX.Element {
  const { name, label, hint, value, change } = props;
  return (
    <label>
      <span>{label}</span>
      <input
        className="jp-Gipfel-field"
        name={name}
        value={value}
        placeholder={hint}
        list={name === 'edf' ? 'jp-Gipfel-edfs' : undefined}
        inputMode={name === 'nodes' || name === 'gpus' ? 'numeric' : undefined}
        onChange={event => {
          change({ [name]: event.target.value });
        }}
      />
    </label>
  );
}

function ParameterField(props: {
  parameter: IParameter;
  value: string;
  onChange: (value: string) => void;
}): React.JSX.Element {
  const { parameter, value, onChange } = props;
  return (
    <label title={parameter.help}>
      <span>
        {parameter.name}
        {parameter.type && <small> {parameter.type}</small>}
      </span>
      <input
        className="jp-Gipfel-field"
        name={`parameter-${parameter.name}`}
        value={value}
        placeholder={parameter.default}
        onChange={event => {
          onChange(event.target.value);
        }}
      />
    </label>
  );
}
