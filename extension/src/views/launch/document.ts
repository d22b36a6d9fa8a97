import type { ILaunch, ITrainingCurve } from '../../api';

/** One check before the start of a launch. */
export interface ICheckOutcome {
  readonly check: string;
  readonly verdict: string;
  readonly message: string;
  readonly fix: string;
}

/** What the view of a single launch shows in addition to what a list of launches has. */
export interface ILaunchDetails {
  /** Protocol of the vetting before the start; empty for none. */
  readonly vetting: string;
  readonly preflight: readonly ICheckOutcome[];
  /** The exact command; empty before it is known. */
  readonly command: string;
  /** The traceback of the first rank that failed; empty if there is none. */
  readonly traceback: string;
  readonly failedRank: number | null;
  readonly folder: string;
  /** Loss over the steps, the newest last. */
  readonly losses: readonly number[];
}

/** The document of a launch as the kernel sends it; incomplete until the launch has started. */
export interface ILaunchDocument extends Partial<Omit<ILaunch, 'training_curve'>>, Partial<ILaunchDetails> {
  readonly training_curve?: ITrainingCurve & { readonly losses?: readonly (readonly [number, number])[] };
  readonly failure?: { readonly rank: number | null } | null;
  readonly flight_recorder?: readonly string[];
}

const NOT_STARTED: ILaunch = {
  id: '',
  number: 0,
  name: '',
  title: '',
  status: '',
  phase: '',
  message: '',
  ranks: 0,
  node_count: 0,
  restarts: 0,
  created_ns: 0,
  started_ns: null,
  ended_ns: null,
  progress: { values: {}, step: null, total: null, time_ns: null, fraction: null },
  training_curve: { losses: [], rate: null, rate_name: '', steps_per_s: null },
  score: null,
  notebook: false,
  run: '',
  traces: [],
  dumps: []
};

/** Return the launch of a document; its ID is empty until the launch has started. */
export function launchOf(document: ILaunchDocument): ILaunch {
  return { ...NOT_STARTED, ...document };
}

/** Return the details of a document. */
export function detailsOf(document: ILaunchDocument): ILaunchDetails {
  return {
    vetting: document.vetting ?? '',
    preflight: document.preflight ?? [],
    command: document.command ?? '',
    traceback: document.traceback ?? '',
    failedRank: document.failure?.rank ?? null,
    folder: document.folder ?? '',
    losses: document.training_curve?.losses.map(([, loss]) => loss) ?? []
  };
}
