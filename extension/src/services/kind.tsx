import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IService } from '../api';
import { formatLocalTime } from '../common/clock';
import type { IWorkloadKind } from '../tokens';
import { ActionButton } from '../views/elements';
import { keyOfWorkload, OtherWorkload } from '../workloads/other';
import type { ServicesModel } from './model';

/** Create the workload kind of services. */
export function serviceKind(
  model: ServicesModel,
  trans: TranslationBundle,
  share: (service: IService) => void
): IWorkloadKind<IService> {
  return {
    id: 'service',
    title: trans.__('services'),
    emptyText: trans.__('Start a service, such as TensorBoard, from the launcher.'),
    workloads: model,
    keyOf: keyOfWorkload,
    createdMs: service => service.created_ns / 1e6,
    render: service => <Service service={service} model={model} trans={trans} share={share} />
  };
}

interface IProps {
  readonly service: IService;
  readonly model: ServicesModel;
  readonly trans: TranslationBundle;
  readonly share: (service: IService) => void;
}

function Service({ service, model, trans, share }: IProps): React.JSX.Element {
  const { id, url, in_hub } = service;
  const buttons = (
    <>
      {url && (
        <a
          href={url}
          target="_blank"
          rel="noopener noreferrer"
          aria-label={trans.__('Open the service %1', id)}
        >
          {trans.__('Open')}
        </a>
      )}
      {url && in_hub && (
        <ActionButton
          text={trans.__('Share')}
          item={`service ${id}`}
          onClick={() => {
            share(service);
          }}
        />
      )}
    </>
  );
  return (
    <OtherWorkload workload={service} model={model} trans={trans} buttons={buttons}>
      {url && <p className="jp-Gipfel-service-url">{url}</p>}
      <Shares service={service} model={model} trans={trans} />
    </OtherWorkload>
  );
}

/** Users and groups with access to a service, each with a button that ends the access. */
function Shares({ service, model, trans }: Omit<IProps, 'share'>): React.JSX.Element | null {
  return (
    <>
      {service.shares.map(({ kind, name, expires }) => (
        <p key={`${kind}:${name}`}>
          {kind === 'group'
            ? trans.__('Shared with the group %1', name)
            : trans.__('Shared with the user %1', name)}{' '}
          {expires && (
            <time dateTime={expires}>{trans.__('until %1', formatLocalTime(Date.parse(expires)))}</time>
          )}{' '}
          <ActionButton
            text={trans.__('End access')}
            item={trans.__('of %1 to %2', name, service.id)}
            busy={model.isBusy(keyOfWorkload(service))}
            onClick={() => void model.endShare(service, kind, name)}
          />
        </p>
      ))}
    </>
  );
}
