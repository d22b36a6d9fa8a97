import type { PartialJSONObject } from '@lumino/coreutils';

import { parseUtcMs } from '../../common/clock';

/** The drawn time axis of a figure, as plotly.js keeps it on its node. */
interface IDrawn extends HTMLElement {
  readonly layout?: {
    readonly margin?: { readonly l?: number; readonly r?: number };
    readonly xaxis?: { readonly range?: readonly (number | string)[]; readonly type?: string };
  };
}

/** The place of a figure's time axis in pixels from its left side, and its range. */
export interface IAxisPlace {
  readonly left: number;
  readonly width: number;
  readonly fromMs: number;
  readonly lengthMs: number;
}

/** Return the time axis that was drawn; null before that. */
export function axisOf(node: IDrawn, offsetMs: number): IAxisPlace | null {
  const { margin, xaxis } = node.layout ?? {};
  const [from, to] = (xaxis?.range ?? []).map(end => parseUtcMs(end, offsetMs));
  const left = margin?.l ?? 0;
  const width = node.clientWidth - left - (margin?.r ?? 0);
  return from === undefined || to === undefined || !(to > from) || width <= 0
    ? null
    : { left, width, fromMs: from, lengthMs: to - from };
}

/** Return the range of a layout's time axis, UTC in milliseconds; null without a time axis. */
export function timeRange(layout: PartialJSONObject): readonly [number, number] | null {
  const { range, type } = (layout.xaxis ?? {}) as { range?: number[]; type?: string };
  const [from, to] = range ?? [];
  return type !== 'date' || from === undefined || to === undefined ? null : [from, to];
}

/** Return the layout with another range of its time axes. */
export function withRange(layout: PartialJSONObject, range: readonly string[]): PartialJSONObject {
  return Object.fromEntries(
    Object.entries(layout).map(([key, value]) => [
      key,
      /^xaxis\d*$/.test(key) ? { ...(value as PartialJSONObject), range: [...range] } : value
    ])
  );
}
