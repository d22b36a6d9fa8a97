import { fitLegends, isDark, themedFigure } from '../../src/views/figures/theme';

const LIGHT_PAGE_TEXT = '#303030';

function darkPage(): HTMLElement {
  const { body } = document;
  body.style.setProperty('--jp-ui-font-color1', '#eee');
  body.style.setProperty('--jp-ui-font-color2', '#bbb');
  body.style.setProperty('--gipfel-warn', '#fb8c00');
  body.style.setProperty('--jp-border-color2', '#444');
  return body;
}

const figure = {
  data: [
    { type: 'heatmap', colorbar: { title: 'SM', tickfont: { size: 10, color: LIGHT_PAGE_TEXT } } },
    { type: 'scatter', line: { color: '#0072b2' } }
  ],
  layout: {
    font: { size: 11, color: LIGHT_PAGE_TEXT },
    xaxis2: { type: 'date', gridcolor: '#dedede' },
    annotations: [
      { text: 'No samples yet.', font: { color: LIGHT_PAGE_TEXT } },
      { text: 'simulated', name: 'simulated', font: { size: 12, color: '#a04000' } },
      { text: 'SM active' }
    ]
  }
};

describe('themedFigure', () => {
  it('gives every text of a figure for light pages the colours of a dark page', () => {
    const { data, layout } = themedFigure(figure, darkPage());
    expect(JSON.stringify([data, layout])).not.toContain(LIGHT_PAGE_TEXT);
    expect(layout).toMatchObject({
      font: { size: 11, color: '#eee' },
      xaxis2: { type: 'date', gridcolor: '#444' },
      annotations: [
        { text: 'No samples yet.', font: { color: '#eee' } },
        { name: 'simulated', font: { size: 12, color: '#fb8c00' } },
        { text: 'SM active', font: { color: '#eee' } }
      ]
    });
    expect(data).toMatchObject([
      { colorbar: { title: 'SM', tickfont: { size: 10, color: '#eee' } } },
      { line: { color: '#0072b2' } }
    ]);
  });

  it('leaves the figure that it was given, and figures without annotations, as they are', () => {
    const before = JSON.stringify(figure);
    expect(themedFigure({ data: [], layout: {} }, darkPage()).layout.annotations).toEqual([]);
    themedFigure(figure, darkPage());
    expect(JSON.stringify(figure)).toBe(before);
  });
});

describe('a browser that forces colours', () => {
  afterEach(() => {
    Reflect.deleteProperty(globalThis, 'matchMedia');
  });

  it.each([
    [true, '#ffffff'],
    [false, '#000000']
  ])('decides if a page is dark: %s', (dark, ink) => {
    const matchMedia = (query: string): { matches: boolean } => ({
      matches: query.startsWith('(forced') || dark
    });
    Object.assign(globalThis, { matchMedia });
    const page = darkPage();
    expect(isDark(page)).toBe(dark);
    const { layout } = themedFigure(figure, page);
    expect(layout).toMatchObject({ font: { color: ink }, xaxis2: { gridcolor: '#808080' } });
  });
});

describe('the legends of a figure', () => {
  const names = ['utilization', 'SM active', 'tensor active', 'DRAM active'];
  const drawn = (width: number): Record<string, unknown> => {
    const layout = {
      margin: { l: 48, r: 10, t: 4, b: 40 },
      height: 304,
      yaxis: { domain: [0.5, 0.75] },
      legend: { y: 0.75 },
      yaxis2: { domain: [0, 0.25] },
      annotations: [
        { yref: 'y domain', yshift: 39 },
        { yref: 'y2 domain', yshift: 1 },
        { text: 'simulated', yref: 'paper', yshift: -18 }
      ]
    };
    const traces = names.map(name => ({ uid: name, name, legend: 'legend', showlegend: true }));
    fitLegends(layout, traces, width);
    return layout;
  };

  it('get space for the lines that they have in a narrow figure, below the title', () => {
    expect(drawn(234)).toEqual({
      margin: { l: 48, r: 10, t: 4, b: 40 },
      height: 342,
      yaxis: { domain: [1 - (0.5 * 260 + 38) / 298, 1 - (0.25 * 260 + 38) / 298] },
      legend: { y: 1 - (0.25 * 260 + 38) / 298 },
      yaxis2: { domain: [0, 1 - (0.75 * 260 + 38) / 298] },
      annotations: [
        { yref: 'y domain', yshift: 77 },
        { yref: 'y2 domain', yshift: 1 },
        { text: 'simulated', yref: 'paper', yshift: -18 }
      ]
    });
  });

  it('leave no gap in a wide figure, and what fits alone', () => {
    expect(drawn(700)).toMatchObject({ height: 285, annotations: [{ yshift: 20 }, { yshift: 1 }, {}] });
    expect(drawn(320).height).toBe(304);
    const heat = {
      margin: { l: 48, r: 10, t: 4, b: 40 },
      height: 200,
      yaxis: {},
      annotations: [{ yshift: -18 }]
    };
    expect(fitLegends(heat, [], 320)).toBe('0');
    expect(heat).toMatchObject({ height: 200, annotations: [{ yshift: -18 }] });
  });
});
