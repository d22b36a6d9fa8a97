import { recentValues } from '../../src/views/figures/values-table';

describe('recentValues', () => {
  it('gives mean and bounds of the last minute of a line, and the unit of its hover text', () => {
    const trace = {
      uid: 'sm',
      name: 'SM active',
      hovertemplate: '%{y:.0f} %<extra></extra>',
      x: [0, 100_000, 130_000, 160_000],
      y: [900, 10, null, 30]
    };
    expect(recentValues({ traces: [trace], layout: {} })).toEqual([
      { name: 'SM active', unit: '%', mean: 20, low: 10, high: 30 }
    ]);
  });

  it('takes the bounds of the samples where points are means of them', () => {
    const trace = { uid: 'power', x: [0, 1000], y: [200, 300], low: [50, NaN], high: [250, 700] };
    expect(recentValues({ traces: [trace], layout: {} })[0]).toMatchObject({
      name: 'power',
      mean: 250,
      low: 50,
      high: 700
    });
  });

  it('has a row per row of a heat map, and none for one without values', () => {
    const heat = {
      uid: 'heat',
      x0: 0,
      dx: 30_000,
      z: [
        [500, 1, 2, 3],
        [null, null, null, null]
      ]
    };
    const rows = recentValues({ traces: [heat], layout: { meta: { names: ['gpu 0', 'gpu 1'] } } });
    expect(rows).toEqual([{ name: 'gpu 0', unit: '', mean: 2.5, low: 2, high: 3 }]);
  });

  it('is empty before the first sample', () => {
    expect(recentValues({ traces: [{ uid: 'sm', x: [], y: [] }], layout: {} })).toEqual([]);
  });
});
