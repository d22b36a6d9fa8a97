import type { PartialJSONObject } from '@lumino/coreutils';

import type { IFigure } from '../api';
import { heatValues, type IHeatBytes } from '../job/heat';

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

interface IMatrixMeta extends IHeatBytes {
  readonly labels: readonly string[];
}

/** Return the figure with its encoded bytes replaced by powers of ten, and a hover text for each cell. */
export function decodedMatrix(figure: IFigure): IFigure {
  const meta = figure.layout.meta as unknown as IMatrixMeta | undefined;
  const [trace] = figure.data;
  if (meta === undefined || trace === undefined) {
    return figure;
  }
  const z = heatValues(meta);
  const text = z.map((row, sender) =>
    Array.from(row, (power, receiver) =>
      Number.isNaN(power)
        ? ''
        : `${meta.labels[sender] ?? ''} → ${meta.labels[receiver] ?? ''}<br>${sizeText(10 ** power)}`
    )
  );
  return { ...figure, data: [{ ...trace, z, text } as unknown as PartialJSONObject] };
}

/** Return bytes as text, such as 3.2 GB. */
export function sizeText(bytes: number): string {
  let [value, unit] = [bytes, 0];
  while (value >= 999.5 && unit < UNITS.length - 1) {
    [value, unit] = [value / 1000, unit + 1];
  }
  return `${value >= 999.5 ? value.toFixed(0) : String(Number(value.toPrecision(3)))} ${UNITS[unit] ?? ''}`;
}

/** Return a time in microseconds as text, such as 12.3 ms. */
export function timeText(microseconds: number): string {
  const [value, unit] =
    microseconds >= 1e6
      ? [microseconds / 1e6, 's']
      : microseconds >= 1e3
        ? [microseconds / 1e3, 'ms']
        : [microseconds, 'µs'];
  return `${Number(value.toPrecision(3))} ${unit}`;
}
