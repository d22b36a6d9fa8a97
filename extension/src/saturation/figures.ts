import type { IFigure } from '../api';
import { loadPlotly } from '../figures/plotly';
import { FigureAids } from '../views/figures/aids';
import { DrawQueue } from '../views/figures/draw-queue';
import type { IFigureFollower, IFigureSource } from '../views/figures/figure';
import type { IFigureOptions, ITimeSpan } from '../views/figures/plot';
import type { SampleUpdate } from '../views/figures/traces';
import type { SaturationModel } from './model';

/** The figures of the saturation section; a zoom selects the time span of the whole section. */
export class SaturationFigures implements IFigureSource {
  constructor(private readonly _model: SaturationModel) {}

  readonly loadPlotly = loadPlotly;

  readonly queue = new DrawQueue();

  readonly aids = new FigureAids();

  /** The evidence of the advice that the user has selected. */
  get marked(): ITimeSpan | null {
    const { evidence } = this._model.selection;
    return evidence && { sinceMs: evidence.start_ns / 1e6, untilMs: evidence.end_ns / 1e6 };
  }

  figure(name: string): IFigure | null {
    return this._model.figure(name);
  }

  /** Return the options: a figure in a tab of its own fills the height of the tab. */
  options(name: string): IFigureOptions {
    return { fill: name.startsWith('gauge/') };
  }

  /** Ignore changes of the theme: the server then sends new figures, with other colours of lines. */
  follow(name: string, follower: IFigureFollower): () => void {
    const figures = (_: unknown, names: readonly string[]): void => {
      if (names.includes(name)) {
        follower.replaced();
      }
    };
    const samples = (_: unknown, update: SampleUpdate): void => {
      follower.extended(update);
    };
    this._model.figuresChanged.connect(figures);
    this._model.samplesReceived.connect(samples);
    return () => {
      this._model.figuresChanged.disconnect(figures);
      this._model.samplesReceived.disconnect(samples);
    };
  }

  zoom(span: ITimeSpan | null): void {
    if (span) {
      this._model.selection.setTimeSpan(span);
    } else {
      this._model.selection.clearTimeSpan();
    }
  }
}
