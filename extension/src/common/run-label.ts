import type { IRunName } from '../api';
import { formatLocalTime } from './clock';

/** Return the label of a run: the name that the user gave it, or its job; its environment and its start. */
export function runLabel(run: IRunName): string {
  const job = run.job_id !== '' && run.cluster !== 'local' ? `${run.cluster} ${run.job_id}` : run.run;
  const name = run.display_name || job;
  const beganMs = Date.parse(run.started);
  const began = Number.isNaN(beganMs) ? '' : formatLocalTime(beganMs);
  return [name, run.edf, began].filter(part => part !== '').join(' · ');
}
