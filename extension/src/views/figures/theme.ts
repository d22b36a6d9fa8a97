import type { PartialJSONObject } from '@lumino/coreutils';

/** Return the layout in the colours of the page's theme. */
export function themed(layout: PartialJSONObject, node: HTMLElement): PartialJSONObject {
  const style = getComputedStyle(node);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const result: PartialJSONObject = {
    ...layout,
    autosize: true,
    // The figure's margins already include the legend; plotly.js would add its size again.
    margin: { ...(layout.margin as PartialJSONObject | undefined), autoexpand: false },
    hoverlabel: {
      bgcolor: colour('--jp-layout-color1'),
      bordercolor: colour('--jp-border-color1'),
      font: { color: colour('--jp-ui-font-color1') }
    },
    modebar: {
      bgcolor: 'rgba(0,0,0,0)',
      color: colour('--jp-ui-font-color2'),
      activecolor: colour('--jp-brand-color1')
    },
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: {
      ...(layout.font as PartialJSONObject | undefined),
      color: colour('--jp-ui-font-color1'),
      family: colour('--jp-ui-font-family')
    }
  };
  delete result.width;
  for (const [key, value] of Object.entries(layout)) {
    if (/^[xy]axis\d*$/.test(key)) {
      result[key] = {
        ...(value as PartialJSONObject),
        gridcolor: colour('--jp-border-color2'),
        linecolor: colour('--jp-border-color1'),
        zerolinecolor: colour('--jp-border-color2')
      };
    }
  }
  return result;
}

/** Return a figure that was drawn for a light page, such as a saved one, with its texts in the colours of the page. */
export function themedFigure(
  figure: { readonly data: readonly PartialJSONObject[]; readonly layout: PartialJSONObject },
  node: HTMLElement
): { data: PartialJSONObject[]; layout: PartialJSONObject } {
  const style = getComputedStyle(node);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const withFont = (part: PartialJSONObject, key: string, color: string): PartialJSONObject => ({
    ...part,
    [key]: { ...(part[key] as PartialJSONObject | undefined), color }
  });
  const layout = themed(figure.layout, node);
  layout.annotations = ((layout.annotations ?? []) as PartialJSONObject[]).map(note =>
    withFont(note, 'font', colour(note.name === 'simulated' ? '--jp-warn-color1' : '--jp-ui-font-color1'))
  );
  const data = figure.data.map(trace =>
    trace.colorbar === undefined
      ? trace
      : {
          ...trace,
          colorbar: withFont(trace.colorbar as PartialJSONObject, 'tickfont', colour('--jp-ui-font-color1'))
        }
  );
  return { data, layout };
}
