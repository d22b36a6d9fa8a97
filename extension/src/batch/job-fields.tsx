import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IBatchForm, IBatchRequest } from '../api';

/** Value of the option for an environment that is not listed; not the name of an EDF. */
const OTHER = '/other';

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
  readonly qos: string;
  readonly reservation: string;
  readonly memory: string;
  readonly output: string;
  readonly resume: boolean;
}

/** Props of the fields, which read all values and change some. */
interface IFieldProps {
  readonly form: IBatchForm;
  readonly state: IBatchValues;
  readonly trans: TranslationBundle;
  readonly change: (part: Partial<IBatchValues>) => void;
}

/** Return the values of the fields with which an earlier request was made. */
export function valuesOf(request: IBatchRequest): IBatchValues {
  const grid = Object.entries(request.grid).map(([name, values]) => [name, `* ${values}`]);
  return {
    parameters: { ...request.parameters, ...(Object.fromEntries(grid) as Record<string, string>) },
    scheduler: request.scheduler,
    edf: request.edf,
    nodes: String(request.nodes),
    gpus: String(request.gpus_per_node),
    time: request.time,
    partition: request.partition,
    account: request.account,
    qos: request.qos,
    reservation: request.reservation,
    memory: request.memory,
    output: request.output,
    resume: request.resume
  };
}

/** The fields of the job: where it runs, its environment and its resources. */
export function JobFields(props: IFieldProps): React.JSX.Element {
  const { state, trans, change } = props;
  const text = (name: TextName, label: string, hint = ''): React.JSX.Element => (
    <TextField name={name} label={label} hint={hint} value={state[name]} change={change} />
  );
  return (
    <fieldset>
      <legend>{trans.__('Job')}</legend>
      <WhereField {...props} />
      <EdfField {...props} />
      {text('gpus', trans.__('GPUs per node'))}
      {state.scheduler !== 'local' && (
        <>
          {text('nodes', trans.__('Nodes'))}
          {text('partition', trans.__('Partition'), trans.__('cluster default'))}
          {text('account', trans.__('Account'), trans.__('your default'))}
          {text('qos', trans.__('QoS'), trans.__("your account's default"))}
          {text('reservation', trans.__('Reservation'), trans.__('none'))}
          {text('memory', trans.__('Memory per node'), trans.__('default; for example 64G'))}
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

function WhereField(props: IFieldProps): React.JSX.Element {
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

/** The known environments, and a field for the path or name of another one. */
function EdfField(props: IFieldProps): React.JSX.Element {
  const { form, state, trans, change } = props;
  const known = ['', ...form.edfs];
  const [typing, setTyping] = React.useState(!known.includes(state.edf));
  return (
    <>
      <label>
        <span>{trans.__('Environment (EDF)')}</span>
        <select
          className="jp-Gipfel-field"
          name="edf"
          value={typing ? OTHER : state.edf}
          onChange={event => {
            setTyping(event.target.value === OTHER);
            if (event.target.value !== OTHER) {
              change({ edf: event.target.value });
            }
          }}
        >
          <option value="">{trans.__('none: without a container')}</option>
          {form.edfs.map(each => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
          <option value={OTHER}>{trans.__('another: name or path …')}</option>
        </select>
      </label>
      {typing && (
        <TextField
          name="edf"
          label={trans.__('Name or path of the EDF')}
          hint={trans.__('such as /path/to/environment.toml')}
          value={state.edf}
          change={change}
        />
      )}
    </>
  );
}

type TextName =
  'edf' | 'nodes' | 'gpus' | 'time' | 'partition' | 'account' | 'qos' | 'reservation' | 'memory' | 'output';

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
        name={name === 'edf' ? 'edf-path' : name}
        value={value}
        placeholder={hint}
        inputMode={name === 'nodes' || name === 'gpus' ? 'numeric' : undefined}
        onChange={event => {
          change({ [name]: event.target.value });
        }}
      />
    </label>
  );
}
