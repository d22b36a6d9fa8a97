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

/** What the stream sends. */
export type StreamMessage =
  | { readonly type: 'figure'; readonly figure: IFigure; readonly status: ISaturationStatus }
  | { readonly type: 'samples'; readonly traces: Traces; readonly status: ISaturationStatus }
  | { readonly type: 'status'; readonly status: ISaturationStatus };

/** Where the connection to the notebook server stands. */
export type Connection = 'connecting' | 'open' | 'retrying' | 'paused';

/** The part of plotly.js that is used here, and that widgets may rely on. */
export interface IPlotly {
  react(
    node: HTMLElement,
    data: readonly PartialJSONObject[],
    layout?: PartialJSONObject,
    config?: PartialJSONObject
  ): Promise<unknown>;
  addFrames(node: HTMLElement, frames: readonly PartialJSONObject[]): Promise<unknown>;
  purge(node: HTMLElement): void;
  readonly Plots: { resize(node: HTMLElement): Promise<unknown> };
}

/** A node that plotly.js has drawn into. */
export interface IPlotlyNode extends HTMLElement {
  on(event: 'plotly_relayout', listener: (change: Readonly<Record<string, unknown>>) => void): void;
}
