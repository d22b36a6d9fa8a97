/** A click on a plot as plotly.js reports it: the cell of a heat map, or the point of a line. */
export interface IPlotlyClick {
  readonly points: readonly {
    readonly pointNumber?: number | readonly number[];
    readonly data?: { readonly name?: string };
  }[];
  readonly event?: Pick<MouseEvent, 'ctrlKey' | 'shiftKey' | 'metaKey'>;
}

/** Called with what the user clicked; `add` is true with Ctrl, Shift or Cmd. */
export interface IClickListener {
  /** A row of the heat map. */
  onRow?(row: number, add: boolean): void;
  /** A line with this name. */
  onLine?(name: string, add: boolean): void;
}

/** Report a click to its listener. */
export function reportClick(click: IPlotlyClick, listener: IClickListener): void {
  const [point] = click.points;
  const place = point?.pointNumber;
  const add = [click.event?.ctrlKey, click.event?.shiftKey, click.event?.metaKey].includes(true);
  if (typeof place === 'object') {
    listener.onRow?.(place[0] ?? 0, add);
  } else if (point?.data?.name !== undefined) {
    listener.onLine?.(point.data.name, add);
  }
}
