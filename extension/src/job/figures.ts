import type { IFigure } from '../api';
import { loadPlotly } from '../figures/plotly';
import type { IJobSelection } from '../tokens';
import { FigureAids } from '../views/figures/aids';
import type { ITimeCursor } from '../views/figures/cursor';
import { DrawQueue } from '../views/figures/draw-queue';
import type { IFigureAids, IFigureFollower, IFigureSource } from '../views/figures/figure';
import type { ITimeSpan } from '../views/figures/plot';
import type { JobModel } from './model';

/** The figures of the job page; a zoom selects the time range, and one cursor goes through all. */
export class JobFigures implements IFigureSource {
  constructor(private readonly _model: JobModel) {
    this.aids = new FigureAids(cursorOf(_model.selection));
  }

  readonly loadPlotly = loadPlotly;

  readonly queue = new DrawQueue();

  readonly marked = null;

  readonly aids: IFigureAids;

  figure(name: string): IFigure | null {
    return this._model.figure(name);
  }

  follow(name: string, follower: IFigureFollower): () => void {
    const figures = (_: unknown, names: readonly string[]): void => {
      if (names.includes(name)) {
        follower.replaced();
      }
    };
    this._model.figuresChanged.connect(figures);
    return () => {
      this._model.figuresChanged.disconnect(figures);
    };
  }

  zoom(span: ITimeSpan | null): void {
    this._model.selection.setSpan(span);
  }
}

/** Return the page's cursor, for the figures of any tab. */
export function cursorOf(selection: IJobSelection): ITimeCursor {
  return {
    get timeMs() {
      return selection.cursorMs;
    },
    set: timeMs => {
      selection.setCursor(timeMs);
    },
    follow: moved => {
      selection.cursorMoved.connect(moved);
      return () => {
        selection.cursorMoved.disconnect(moved);
      };
    }
  };
}
