import type { IFigure } from '../api';
import { DrawQueue } from '../views/figures/draw-queue';
import type { IFigureFollower, IFigureSource } from '../views/figures/figure';
import { loadPlotly } from './plotly';

/** A figure that is part of a document; a new answer of the server replaces it. */
export class GivenFigure implements IFigureSource {
  /** @param _decode Returns the figure with the values that the server sends encoded. */
  constructor(private readonly _decode: (figure: IFigure) => IFigure = figure => figure) {}

  readonly loadPlotly = loadPlotly;

  readonly queue = new DrawQueue();

  readonly marked = null;

  set(figure: IFigure | null): void {
    if (figure !== this._given) {
      this._given = figure;
      this._figure = figure && this._decode(figure);
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
