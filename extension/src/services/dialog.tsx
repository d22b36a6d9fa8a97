import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IServiceParameter, IOfferedService, IServiceStart } from '../api';
import { errorMessage } from '../common/error-message';
import { Limits } from '../workloads/limits';
import type { ServicesModel } from './model';

/** Show the form of a blueprint, and start its service; after an error the form keeps its values. */
export async function startService(
  model: ServicesModel,
  trans: TranslationBundle,
  offer: IOfferedService,
  showServices: () => void
): Promise<void> {
  const body = new FormBody<IServiceStart>(
    { blueprint: offer.name, name: offer.name, parameters: {}, edf: '', time: '' },
    (value, change) => (
      <>
        <StartFields offer={offer} value={value} change={change} trans={trans} />
        <Limits fetchLimits={() => model.limits()} trans={trans} />
      </>
    )
  );
  const title = trans.__('Start %1', offer.title);
  await untilAccepted(body, title, trans.__('Start'), async value => {
    const name = await model.start(value);
    Notification.info(trans.__('The service %1 is starting.', name), {
      autoClose: 10_000,
      actions: [{ label: trans.__('Show'), callback: showServices }]
    });
  });
}

/** Show the dialog until its request succeeds or the user cancels it. */
export async function untilAccepted<T extends object>(
  body: FormBody<T>,
  title: string,
  label: string,
  request: (value: T) => Promise<void>
): Promise<void> {
  let next = body;
  for (;;) {
    const { button, value } = await showDialog<T>({
      title,
      body: next,
      buttons: [Dialog.cancelButton(), Dialog.okButton({ label })]
    });
    if (!button.accept || value === null) {
      return;
    }
    try {
      await request(value);
      return;
    } catch (error) {
      next = next.again(errorMessage(error));
    }
  }
}

type Fields<T> = (value: T, change: (part: Partial<T>) => void) => React.JSX.Element;

/** The body of a dialog: fields for a value, and the problem with the value that was requested before. */
export class FormBody<T extends object> extends ReactWidget implements Dialog.IBodyWidget<T> {
  constructor(
    private _value: T,
    private readonly _fields: Fields<T>,
    private readonly _problem = ''
  ) {
    super();
    this.addClass('jp-Gipfel-batch-dialog');
  }

  /** Return the body for the same value, with a problem. */
  again(problem: string): FormBody<T> {
    return new FormBody(this._value, this._fields, problem);
  }

  /** Return the current value. */
  getValue(): T {
    return this._value;
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
        <Form
          first={this._value}
          fields={this._fields}
          onChange={value => {
            this._value = value;
          }}
        />
      </>
    );
  }
}

function Form<T extends object>(props: {
  first: T;
  fields: Fields<T>;
  onChange: (value: T) => void;
}): React.JSX.Element {
  const [value, setValue] = React.useState(props.first);
  const change = (part: Partial<T>): void => {
    const next = { ...value, ...part };
    setValue(next);
    props.onChange(next);
  };
  return <div className="jp-Gipfel-batch-fields">{props.fields(value, change)}</div>;
}

/** The properties of the fields of a form. */
export interface IFieldsProps<T> {
  readonly value: T;
  readonly change: (part: Partial<T>) => void;
  readonly trans: TranslationBundle;
}

function StartFields(props: IFieldsProps<IServiceStart> & { offer: IOfferedService }): React.JSX.Element {
  const { offer, value, change, trans } = props;
  const facts = [
    offer.version && trans.__('Version %1', offer.version),
    offer.license && trans.__('license %1', offer.license),
    offer.memory && trans.__('about %1 of memory', offer.memory),
    offer.start_s > 0 && trans.__('starts in about %1 s', offer.start_s),
    trans.__('costs %1', offer.cost)
  ].filter(each => each !== '' && each !== false);
  return (
    <>
      <p>{offer.about}</p>
      <p>{facts.join(' · ')}</p>
      <fieldset>
        <legend>{trans.__('Parameters')}</legend>
        {offer.parameters.map(each => (
          <ParameterField
            key={each.name}
            parameter={each}
            value={value.parameters[each.name] ?? ''}
            onChange={text => {
              change({ parameters: { ...value.parameters, [each.name]: text } });
            }}
          />
        ))}
        <Text label={trans.__('Name')} name="name" value={value.name} change={change} />
        <Text
          label={trans.__('Environment (EDF)')}
          name="edf"
          value={value.edf}
          hint={offer.edf || trans.__('default')}
          change={change}
        />
        <Text
          label={trans.__('Time')}
          name="time"
          value={value.time}
          hint={trans.__('default; for example 01:30:00')}
          change={change}
        />
      </fieldset>
    </>
  );
}

function Text(props: {
  label: string;
  name: 'edf' | 'name' | 'time';
  value: string;
  hint?: string;
  change: (part: Partial<IServiceStart>) => void;
}): React.JSX.Element {
  const { label, name, value, hint, change } = props;
  return (
    <label>
      <span>{label}</span>
      <input
        className="jp-Gipfel-field"
        name={name}
        value={value}
        placeholder={hint}
        onChange={event => {
          change({ [name]: event.target.value });
        }}
      />
    </label>
  );
}

function ParameterField(props: {
  parameter: IServiceParameter;
  value: string;
  onChange: (value: string) => void;
}): React.JSX.Element {
  const { parameter, value, onChange } = props;
  const { name, help, choices, required } = parameter;
  const field = { name: `parameter-${name}`, value: value || (choices.length > 0 ? parameter.default : '') };
  return (
    <label title={help}>
      <span>
        {name} <small>{required ? 'required' : parameter.type}</small>
      </span>
      {choices.length > 0 ? (
        <select
          className="jp-Gipfel-field"
          {...field}
          onChange={event => {
            onChange(event.target.value);
          }}
        >
          {choices.map(each => (
            <option key={each}>{each}</option>
          ))}
        </select>
      ) : (
        <input
          className="jp-Gipfel-field"
          {...field}
          placeholder={parameter.default || help}
          onChange={event => {
            onChange(event.target.value);
          }}
        />
      )}
    </label>
  );
}
