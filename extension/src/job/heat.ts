import type { PartialJSONObject } from '@lumino/coreutils';

import type { IFigure } from '../api';

/** Byte of a missing value, and the byte of the highest one. */
const MISSING = 255;
const LEVELS = 254;

/** What the server tells of the rows of a heat map. */
export interface IHeatRows {
  readonly labels: readonly string[];
  readonly ranks: readonly (readonly number[])[];
  readonly nodes: readonly string[];
  readonly uuids: readonly string[];
  /** Devices that are put together in a row, which shows the worst of them. */
  readonly rows_per_bin: number;
}

/** Values of a heat map as bytes, from the lowest to the highest one. */
export interface IHeatBytes {
  readonly bytes: string;
  readonly shape: readonly [number, number];
  readonly low: number;
  readonly high: number;
}

interface IHeatMeta extends IHeatRows, IHeatBytes {}

/** Return the rows of a heat map; null for one without values. */
export function heatRows(figure: IFigure | null): IHeatRows | null {
  const meta = figure?.layout.meta as IHeatMeta | undefined;
  return meta?.bytes === undefined ? null : meta;
}

/** Return a heat map of bytes with its values, which plotly.js draws; other figures as they are. */
export function decodedHeat(figure: IFigure): IFigure {
  const meta = figure.layout.meta as IHeatMeta | undefined;
  const [trace] = figure.data;
  if (meta?.bytes === undefined || trace === undefined) {
    return figure;
  }
  const z = heatValues(meta);
  const columns = meta.shape[1];
  const text = meta.labels.map(label => Array.from({ length: columns }, () => plain(label)));
  // The labels are what a pointer shows, and the bytes are no longer needed.
  const kept: PartialJSONObject = {
    ...figure.layout,
    meta: { ...meta, bytes: '' } as unknown as PartialJSONObject
  };
  return { ...figure, layout: kept, data: [{ ...trace, z, text } as unknown as PartialJSONObject] };
}

/** Return the values of a heat map's bytes; NaN where there is none. */
export function heatValues(meta: IHeatBytes): Float32Array[] {
  const [rows, columns] = meta.shape;
  const bytes = Uint8Array.from(atob(meta.bytes), each => each.charCodeAt(0));
  const scale = (meta.high - meta.low) / LEVELS;
  const level = Float32Array.from({ length: LEVELS + 2 }, (_, byte) =>
    byte === MISSING ? NaN : meta.low + byte * scale
  );
  return Array.from({ length: rows }, (_, row) =>
    Float32Array.from(bytes.subarray(row * columns, (row + 1) * columns), byte => level[byte] ?? NaN)
  );
}

/** Return a text that plotly.js does not read as markup. */
function plain(text: string): string {
  return text.replace(/&/g, '&amp;').replace(/</g, '&lt;');
}
