import type { PartialJSONObject } from '@lumino/coreutils';

import type { ITrace } from './traces';

/** Return the layout in the colours of the page's theme. */
export function themed(layout: PartialJSONObject, node: HTMLElement): PartialJSONObject {
  const colour = coloursOf(node);
  const result: PartialJSONObject = {
    ...layout,
    autosize: true,
    // The figure's margins already include the legend; plotly.js would add its size again.
    margin: { ...(layout.margin as PartialJSONObject | undefined), autoexpand: false },
    hoverlabel: {
      bgcolor: colour('--jp-layout-color1', '#ffffff'),
      bordercolor: colour('--jp-border-color1', '#bdbdbd'),
      font: { color: colour('--jp-ui-font-color1', '#303030') }
    },
    modebar: {
      bgcolor: 'rgba(0,0,0,0)',
      color: colour('--jp-ui-font-color2', '#616161'),
      activecolor: colour('--jp-brand-color1', '#1976d2')
    },
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: {
      ...(layout.font as PartialJSONObject | undefined),
      color: colour('--jp-ui-font-color1', '#303030'),
      family: colour('--jp-ui-font-family', 'sans-serif')
    },
    annotations: ((layout.annotations ?? []) as PartialJSONObject[]).map(note =>
      note.name === 'simulated' ? withFont(note, 'font', colour('--gipfel-warn', '#ab6007')) : note
    )
  };
  delete result.width;
  for (const [key, value] of Object.entries(layout)) {
    if (/^[xy]axis\d*$/.test(key)) {
      result[key] = {
        // plotly.js would measure each label in each draw, to hide those beyond the figure; above and below a plot
        // there is always space for half a label.
        ...(key.startsWith('y') ? { ticklabeloverflow: 'allow' } : {}),
        ...(value as PartialJSONObject),
        gridcolor: colour('--jp-border-color2', '#dedede'),
        linecolor: colour('--jp-border-color1', '#bdbdbd'),
        zerolinecolor: colour('--jp-border-color2', '#dedede')
      };
    }
  }
  return result;
}

/** Return a function that reads the page's colours; if the browser forces colours, only those of text and page. */
function coloursOf(node: HTMLElement): (name: string, otherwise: string) => string {
  const style = getComputedStyle(node);
  const forced = forcedDark();
  return (name, otherwise) => {
    const kind = forced === null ? undefined : /^--jp-(layout|border|brand|ui-font-color)/.exec(name)?.[1];
    if (kind !== undefined) {
      return kind === 'border' ? '#808080' : forced === (kind === 'layout') ? '#000000' : '#ffffff';
    }
    return style.getPropertyValue(name).trim() || otherwise;
  };
}

/** Return a figure that was drawn for a light page, such as a saved one, with its texts in the colours of the page. */
export function themedFigure(
  figure: { readonly data: readonly PartialJSONObject[]; readonly layout: PartialJSONObject },
  node: HTMLElement
): { data: PartialJSONObject[]; layout: PartialJSONObject } {
  const layout = themed(figure.layout, node);
  const { color } = layout.font as { color: string };
  layout.annotations = (layout.annotations as PartialJSONObject[]).map(note =>
    note.name === 'simulated' ? note : withFont(note, 'font', color)
  );
  const data = figure.data.map(trace =>
    trace.colorbar === undefined
      ? trace
      : {
          ...trace,
          colorbar: withFont(trace.colorbar as PartialJSONObject, 'tickfont', color)
        }
  );
  return { data, layout };
}

function withFont(part: PartialJSONObject, key: string, color: string): PartialJSONObject {
  return { ...part, [key]: { ...(part[key] as PartialJSONObject | undefined), color } };
}

/** Cache of the last result: each draw asks for the background, and reading a canvas is slow. */
let last = { ground: '', dark: false };

/** The queries that change where the browser forces its user's colours on pages. */
export const FORCED = ['(forced-colors: active)', '(prefers-color-scheme: dark)'] as const;

/** Return true if the browser forces a dark page, false if it forces a light one, null if pages have their colours. */
export function forcedDark(): boolean | null {
  // matchMedia does not exist everywhere that views run.
  const matches = (query: string): boolean =>
    typeof globalThis.matchMedia === 'function' && globalThis.matchMedia(query).matches;
  return matches(FORCED[0]) ? matches(FORCED[1]) : null;
}

/** Return true if the page around a node is dark: because of its theme, or because the browser forces it. */
export function isDark(node: HTMLElement): boolean {
  const forced = forcedDark();
  if (forced !== null) {
    return forced;
  }
  const ground = getComputedStyle(node).getPropertyValue('--jp-layout-color1').trim();
  if (ground !== last.ground) {
    last = { ground, dark: isDarkColour(ground) };
  }
  return last.dark;
}

function isDarkColour(ground: string): boolean {
  // A canvas parses every notation of CSS colours.
  const canvas = ground ? document.createElement('canvas').getContext('2d') : null;
  if (!canvas) {
    return false;
  }
  canvas.fillStyle = ground;
  canvas.fillRect(0, 0, 1, 1);
  const [red = 255, green = 255, blue = 255] = canvas.getImageData(0, 0, 1, 1).data;
  return red + green + blue < 384;
}

const SAMPLE_PIXELS = 45;
const LETTER_PIXELS = 6;
const LINE_PIXELS = 19;
const MOST_LINES = 8;

/** Title of a plot, above its legend. */
interface ITitle extends PartialJSONObject {
  yref?: string;
  yshift?: number;
}

/**
 * Fit the space between title and plot to the lines that each legend of a figure has at this width.
 *
 * @returns The shift of each plot in pixels, as text to compare: draw the figure again if it changed.
 */
export function fitLegends(layout: PartialJSONObject, traces: readonly ITrace[], width: number): string {
  const { l, r, t, b } = layout.margin as Readonly<Record<'l' | 'r' | 't' | 'b', number>>;
  const titles = [...((layout.annotations ?? []) as ITitle[])];
  const numbers = Object.keys(layout).flatMap(key => /^yaxis(\d*)$/.exec(key)?.[1] ?? []);
  let added = 0;
  const shifts = numbers.map(number => {
    const place = titles.findIndex(each => each.yref === `y${number} domain` && each.yshift !== undefined);
    const widths = traces
      .filter(each => each.legend === `legend${number}` && each.showlegend)
      .map(each => SAMPLE_PIXELS + LETTER_PIXELS * (each.name?.length ?? 0));
    const title = titles[place];
    if (title?.yshift !== undefined && widths.length > 0) {
      // In several lines, plotly.js draws columns as wide as the longest entry.
      const isOneLine = widths.reduce((sum, each) => sum + each, 0) <= width - l - r;
      const columns = isOneLine ? widths.length : Math.floor((width - l - r) / Math.max(...widths));
      const lines = Math.min(MOST_LINES, Math.ceil(widths.length / Math.max(1, columns)));
      const yshift = LINE_PIXELS * lines + 1;
      added += yshift - title.yshift;
      titles[place] = { ...title, yshift };
    }
    return added;
  });
  const height = Number(layout.height);
  const before = height - t - b;
  if (shifts.some(each => each !== 0)) {
    numbers.forEach((number, place) => {
      const axis = layout[`yaxis${number}`] as { domain: [number, number] };
      const moved = (end: number): number =>
        Math.max(0, 1 - ((1 - end) * before + (shifts[place] ?? 0)) / (before + added));
      const domain = axis.domain.map(moved);
      layout[`yaxis${number}`] = { ...axis, domain };
      if (layout[`legend${number}`]) {
        layout[`legend${number}`] = { ...(layout[`legend${number}`] as PartialJSONObject), y: domain[1] };
      }
    });
    layout.annotations = titles;
    layout.height = height + added;
  }
  return shifts.join();
}

/** Highlight a time span in each plot of a figure, in the colour of the page; between plots are titles and legends. */
export function markSpan(
  layout: PartialJSONObject,
  span: { readonly sinceMs: number; readonly untilMs: number },
  node: HTMLElement
): void {
  const colour = getComputedStyle(node).getPropertyValue('--jp-brand-color1').trim();
  const shape = {
    type: 'rect',
    x0: span.sinceMs,
    x1: span.untilMs,
    y0: 0,
    y1: 1,
    line: { width: 1, dash: 'dash', color: colour },
    fillcolor: colour,
    opacity: 0.16,
    layer: 'below'
  };
  const plots = Object.keys(layout).flatMap(key => /^yaxis(\d*)$/.exec(key)?.[1] ?? []);
  const marks = plots.map(number => ({ ...shape, xref: `x${number}`, yref: `y${number} domain` }));
  layout.shapes = [...((layout.shapes as PartialJSONObject[] | undefined) ?? []), ...marks];
}

/** Return a layout with another range of its time axes, as the user chose it. */
export function withRange(layout: PartialJSONObject, range: readonly string[]): PartialJSONObject {
  return Object.fromEntries(
    Object.entries(layout).map(([key, value]) => [
      key,
      /^xaxis\d*$/.test(key) ? { ...(value as PartialJSONObject), range: [...range] } : value
    ])
  );
}
