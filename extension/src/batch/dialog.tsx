import type { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IBatchForm, IBatchRequest, IParameter } from '../api';
import { JobFields, type IBatchValues } from './job-fields';

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
      qos: '',
      reservation: '',
      memory: '',
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
    const { parameters, scheduler, edf, nodes, gpus, time, output, resume } = this._values;
    const { partition, account, qos, reservation, memory } = this._values;
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
      edf: edf.trim(),
      nodes: slurm ? Number(nodes) || 1 : 1,
      gpus_per_node: Number(gpus) || 0,
      time: time.trim(),
      partition: slurm ? partition.trim() : '',
      account: slurm ? account.trim() : '',
      qos: slurm ? qos.trim() : '',
      reservation: slurm ? reservation.trim() : '',
      memory: slurm ? memory.trim() : '',
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

function ParameterField(props: {
  parameter: IParameter;
  value: string;
  onChange: (value: string) => void;
}): React.JSX.Element {
  const { parameter, value, onChange } = props;
  return (
    <label>
      <span>
        {parameter.name}
        {parameter.type && <small> {parameter.type}</small>}
        {parameter.help && <small> · {parameter.help}</small>}
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
