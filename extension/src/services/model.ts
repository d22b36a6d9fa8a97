import type {
  ILimits,
  IOfferedService,
  IService,
  IServiceOffers,
  IServices,
  IServiceShareChange,
  IServiceStart
} from '../api';
import { requestJson } from '../common/request';
import { keyOfWorkload, OtherWorkloadsModel } from '../workloads/other';

/** The user's services, with their addresses and with whom they are shared. */
export class ServicesModel extends OtherWorkloadsModel<IService> {
  /** Return the blueprints that can be started. */
  async offers(): Promise<readonly IOfferedService[]> {
    return (await requestJson<IServiceOffers>(this.settings, 'services/offers')).offers;
  }

  /** Return what limits the user's jobs, and what is left. */
  limits(): Promise<ILimits> {
    return requestJson<ILimits>(this.settings, 'quota');
  }

  /** Start a service; throws an error with a message for the user. */
  async start(request: IServiceStart): Promise<string> {
    const { id } = await requestJson<{ id: string }>(this.settings, 'services', 'POST', request);
    void this.refresh();
    return id;
  }

  /** Give or end access to a service, and update the list; throws an error with a message for the user. */
  async share(change: IServiceShareChange): Promise<void> {
    await requestJson<unknown>(this.settings, 'services/share', 'POST', change);
    await this.refresh();
  }

  /** End the access of a user or group; a failure is shown in the list. */
  endShare(service: IService, kind: string, name: string): Promise<void> {
    return this.act(keyOfWorkload(service), () =>
      this.share({ service: service.id, kind, name, seconds: 0 })
    );
  }

  protected override async listWorkloads(): Promise<readonly IService[]> {
    return (await requestJson<IServices>(this.settings, 'services')).services;
  }
}
