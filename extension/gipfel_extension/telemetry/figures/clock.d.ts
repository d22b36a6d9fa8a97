import type { PartialJSONObject, PartialJSONValue } from '@lumino/coreutils';

export declare function aheadMs(timeMs: number): number;
export declare function zoneName(timeMs: number): string;
export declare function clockTime(timeMs: number): string;
export declare function clockMoment(timeMs: number, nowMs?: number): string;
export declare function clockRange(sinceMs: number, untilMs: number, nowMs?: number): string;
export declare function onReadersClock(text: string, nowMs?: number): string;
export declare function wallText(timeMs: number, ahead: number): string;
export declare function utcOf(said: unknown, ahead: number): number;
export declare function readersFigure(figure: {
  data?: readonly PartialJSONObject[];
  layout?: PartialJSONObject;
}): { data: PartialJSONObject[]; layout: PartialJSONObject; ahead: number };
export declare function readersTimes(
  trace: PartialJSONObject,
  layout: PartialJSONObject,
  ahead: number,
  text?: (timeMs: number, ahead: number) => string
): { x?: PartialJSONValue[]; x0?: string };
export declare function readersLayout(layout: PartialJSONObject, ahead: number): PartialJSONObject;
