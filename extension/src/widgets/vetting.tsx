import * as React from 'react';

import type { IVettingGrid } from '../api';
import { ENGLISH } from '../views/translation';
import { Report } from '../views/vetting/report';
import { summarizeVetting } from '../views/vetting/summary';
import { hostView } from './host';

/** The state of `vetting.py`. */
interface IVettingState {
  /** Empty before there is a report. */
  readonly grid: IVettingGrid | Record<string, never>;
  /** Message if there is no grid, or if the grid is no longer updated. */
  readonly message: string;
}

function Vetting({ grid, message }: IVettingState): React.JSX.Element {
  if (!isReport(grid)) {
    return (
      <div className="jp-Gipfel-widget jp-Gipfel-vetting">
        <p role="status">{message}</p>
      </div>
    );
  }
  const { shape, text } = summarizeVetting(grid, grid.ended_ns === null, ENGLISH);
  return (
    <div className="jp-Gipfel-widget jp-Gipfel-vetting">
      <p role="status">
        <strong>
          {shape} Vetting: {text}
        </strong>
      </p>
      {message && <p>▲ {message}</p>}
      <Report grid={grid} trans={ENGLISH} />
    </div>
  );
}

function isReport(grid: IVettingState['grid']): grid is IVettingGrid {
  return 'rows' in grid;
}

export default hostView<IVettingState>(['grid', 'message'], Vetting);
