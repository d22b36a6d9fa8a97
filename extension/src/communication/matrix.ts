import type { PartialJSONObject } from '@lumino/coreutils';

import type { IFigure } from '../api';
import { loadPlotly } from '../figures/plotly';
import { heatValues, type IHeatBytes } from '../job/heat';
import { DrawQueue } from '../views/figures/draw-queue';
import type { IFigureFollower, IFigureSource } from '../views/figures/figure';

const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

interface IMatrixMeta extends IHeatBytes {
  readonly labels: readonly string[];
}

/** The matrix of bytes as a figure; a new answer of the server replaces it. */
export class MatrixFigure implements IFigureSource {
  readonly loadPlotly = loadPlotly;

  readonly queue = new DrawQueue();

  readonly marked = null;

  set(figure: IFigure | null): void {
    if (figure !== this._given) {
      this._given = figure;
      this._figure = figure && decoded(figure);
      this._followers.forEach(each => {
        each.replaced();
      });
    }
  }

  figure(): IFigure | null {
    return this._figure;
  }

  follow(_: string, follower: IFigureFollower): () => void {
    this._followers.add(follower);
    return () => {
      this._followers.delete(follower);
    };
  }

  zoom(): void {
    // The axes are fixed.
  }

  private readonly _followers = new Set<IFigureFollower>();
  private _given: IFigure | null = null;
  private _figure: IFigure | null = null;
}

/** Return the figure with the powers of ten that its bytes mean, and a text for the pointer. */
function decoded(figure: IFigure): IFigure {
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
