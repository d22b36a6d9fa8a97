import type { JSONObject, PartialJSONObject } from '@lumino/coreutils';

/** What the server says about the samples it reads. */
export interface ISaturationStatus {
  readonly state: 'live' | 'starting' | 'stale' | 'absent';
  readonly source: string;
  readonly simulated: boolean;
  readonly gpus: number;
  /** Seconds between two samples. */
  readonly interval: number;
  /** UTC nanoseconds of the newest sample, rounded to what a double holds. */
  readonly last_ns: number | null;
  /** One line for people. */
  readonly message: string;
}

/** A GPU or a host whose samples are recorded. */
export interface IDevice {
  readonly uuid: string;
  readonly kind: 'gpu' | 'host';
  readonly name: string;
  readonly index: number | null;
  readonly node: string;
}

/** What this notebook server runs in. */
export interface IRunInfo {
  readonly run: string | null;
  readonly message?: string;
  readonly node: string;
  readonly job_id: string;
  readonly cluster: string;
  readonly edf: { readonly name: string; readonly digest: string } | null;
  /** UTC nanoseconds at which the job's time ends. */
  readonly ends_ns: number | null;
  readonly devices: readonly IDevice[];
  /** Why there is no GPU though some were asked for; empty where none were. */
  readonly no_gpu: string;
  readonly record: JSONObject;
}

/** When this server ends; times are UTC milliseconds of the server's clock. */
export interface ILeaving {
  readonly now_ms: number;
  readonly ends_ms: number | null;
  /** Seconds before the end at which a notice is due. */
  readonly notices_s: readonly number[];
  /** Seconds that may be added with one press, 0 where none. */
  readonly extend_s: number;
  /** Since when nothing runs and when the server is stopped for it, null while that is far. */
  readonly idle: { readonly since_ms: number; readonly stop_ms: number } | null;
}

/** A plotly figure as plain data. */
export interface IFigure {
  readonly data: readonly PartialJSONObject[];
  readonly layout: PartialJSONObject;
  readonly config?: PartialJSONObject;
  readonly frames?: readonly PartialJSONObject[];
}

/** New points of one trace: times in UTC milliseconds and values, of the same length. */
export interface IPoints {
  readonly x: readonly number[];
  readonly y: readonly (number | null)[];
}

/** New points by the `uid` of their trace. */
export type Traces = Readonly<Record<string, IPoints>>;

/** New values of the heat map: row, UTC milliseconds, value in the figure's unit; of the same length. */
export interface ICells {
  readonly row: readonly number[];
  readonly x: readonly number[];
  readonly y: readonly number[];
}

/** What came in since the last message. */
export interface INews {
  readonly traces?: Traces;
  readonly cells?: ICells;
}

/** What a page looks at; the server answers with figures. */
export interface IView {
  readonly window: number;
  readonly dark: boolean;
  /** The heat map's metric. */
  readonly metric: string;
  /** UUIDs of the GPUs that are shown one by one. */
  readonly gpus: readonly string[];
}

/** Figures by name: `job`, `host`, `heat`, `gpu/<uuid>`. */
export type Figures = Readonly<Record<string, IFigure>>;

/** The stretch of a device's samples that shows why something is advised; times in UTC nanoseconds. */
export interface IEvidence {
  readonly device: string;
  readonly metrics: readonly string[];
  readonly start_ns: number;
  readonly end_ns: number;
}

/** One piece of advice. */
export interface IAdvice {
  readonly rule: string;
  readonly sentence: string;
  readonly action: string;
  readonly gain: number;
  readonly expect: string;
  readonly knob: { readonly name: string; readonly link: string };
  readonly evidence: readonly IEvidence[];
}

/** A score as `gipfel score --json` gives it; numbers that nobody knows are null. */
export interface IScore {
  readonly score: number | null;
  /** The largest part of 100; null where samples are too far apart to tell. */
  readonly bottleneck: string | null;
  /** Bounds of the score that faster samples could show; null where there is no score. */
  readonly range: readonly [number, number] | null;
  readonly binding: Readonly<Record<string, number | null>>;
  readonly losses: Readonly<Record<string, number | null>>;
  /** The score and the losses as whole numbers that add up to 100; null where there is no score. */
  readonly whole_points: Readonly<Record<string, number>> | null;
  readonly advice: readonly IAdvice[];
  /** What became of the advice of an earlier run of the same program, a sentence each. */
  readonly since?: { readonly lines: readonly string[] } | null;
  readonly confidence: number | null;
  readonly gpus: readonly {
    readonly uuid: string;
    readonly score: number | null;
    readonly utilization: number | null;
  }[];
  readonly spread: {
    readonly p10: number;
    readonly worst: number;
    readonly worst_gpu: string;
    readonly gap: number;
  } | null;
  readonly startup_s: number;
  readonly interval_s: number;
  /** Seconds over which the scored values are means; null where they are the samples. */
  readonly means_s?: number | null;
  readonly simulated: boolean;
  readonly notes: readonly string[];
}

/** Something that happened to the recording or to a GPU; the time is UTC in milliseconds. */
export interface IRunEvent {
  readonly time_ms: number;
  readonly node: string;
  readonly kind: string;
  readonly device: string;
  readonly message: string;
}

/** A run of the user's. */
export interface IRunName {
  readonly run: string;
  readonly job_id: string;
  readonly cluster: string;
  readonly kind: string;
  readonly started: string;
  readonly edf: string;
  readonly current: boolean;
}

/** A stretch of a run as it was. */
export interface IStretch {
  readonly run: string;
  readonly figures: Figures;
  readonly events: readonly IRunEvent[];
  readonly devices: readonly IDevice[];
  readonly bucket_s: number;
  /** Whether something records this run now, and it is worth asking again. */
  readonly growing: boolean;
}

/** Two runs side by side. */
export interface IComparison {
  readonly runs: readonly string[];
  readonly rows: readonly {
    readonly name: string;
    readonly unit: string;
    readonly first: number | null;
    readonly second: number | null;
    readonly change: number | null;
    readonly better: boolean | null;
  }[];
  readonly figure: IFigure;
}

/** What the stream sends. */
export type StreamMessage =
  | {
      readonly type: 'figures';
      readonly figures: Figures;
      /** Whether these are all figures, rather than some that were missing. */
      readonly whole: boolean;
      readonly gpus: readonly IDevice[];
      readonly status: ISaturationStatus;
    }
  | ({ readonly type: 'samples'; readonly status: ISaturationStatus } & INews)
  | { readonly type: 'score'; readonly document: IScore; readonly events: readonly IRunEvent[] }
  | { readonly type: 'status'; readonly status: ISaturationStatus };
