import type { PartialJSONObject, PartialJSONValue } from '@lumino/coreutils';

export declare function isUtcChosen(): boolean;
export declare function chooseUtc(chosen: boolean): void;
export declare function utcOffsetMs(timeMs: number): number;
export declare function zoneName(timeMs: number): string;
export declare function formatTimeOfDay(timeMs: number): string;
export declare function formatLocalTime(timeMs: number, nowMs?: number): string;
export declare function formatTimeRange(sinceMs: number, untilMs: number, nowMs?: number): string;
export declare function inLocalTime(text: string, nowMs?: number): string;
export declare function localTimeText(timeMs: number, offsetMs: number): string;
export declare function parseUtcMs(time: unknown, offsetMs: number): number;
export declare function localTimeFigure(figure: {
  data?: readonly PartialJSONObject[];
  layout?: PartialJSONObject;
}): { data: PartialJSONObject[]; layout: PartialJSONObject; offsetMs: number };
export declare function localTimes(
  trace: PartialJSONObject,
  layout: PartialJSONObject,
  offsetMs: number,
  text?: (timeMs: number, offsetMs: number) => string
): { x?: PartialJSONValue[]; x0?: string };
export declare function localTimeLayout(layout: PartialJSONObject, offsetMs: number): PartialJSONObject;
