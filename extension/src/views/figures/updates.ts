import type { IFigure, ISamplesMessage } from '../../api';

/** Samples since the last message. */
export type SampleUpdate = Pick<ISamplesMessage, 'traces' | 'cells'>;

/** New points by the `uid` of their trace. */
export type Traces = NonNullable<ISamplesMessage['traces']>;

/** Figures by name: `job`, `host`, `heat`, `gpu/<uuid>`. */
export type Figures = Readonly<Record<string, IFigure>>;
