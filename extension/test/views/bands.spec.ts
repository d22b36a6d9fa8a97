import { bandedLine } from '../../src/views/figures/bands';

const RANGE = [0, 1000] as const;

function line(values: readonly (number | null)[], stepMs: number): Parameters<typeof bandedLine>[0] {
  return {
    uid: 'sm',
    x: values.map((_, place) => place * stepMs),
    y: [...values],
    line: { color: '#123456' }
  };
}

describe('bandedLine', () => {
  it('draws a line as it is while it has at most a point per pixel', () => {
    expect(bandedLine(line([1, 2, 3], 100), RANGE, 100)).toBeNull();
  });

  it('draws means, and a band from the least to the greatest value, where points are denser than pixels', () => {
    const values = Array.from({ length: 1000 }, (_, place) => (place % 2 === 0 ? 0 : 10));
    values[500] = 99;
    const drawn = bandedLine(line(values, 1), RANGE, 100);
    expect(drawn?.line.x).toHaveLength(50);
    expect(drawn?.line.y[0]).toBe(5);
    const { y = [], fill, fillcolor } = drawn?.band ?? { uid: '' };
    const known = y.filter(value => value !== null);
    expect([Math.min(...known), Math.max(...known)]).toEqual([0, 99]);
    expect({ fill, fillcolor }).toEqual({ fill: 'toself', fillcolor: '#123456' });
  });

  it('leaves gaps open in line and band', () => {
    const values = Array.from({ length: 1000 }, (_, place) =>
      place >= 400 && place < 600 ? null : place % 7
    );
    const drawn = bandedLine(line(values, 1), RANGE, 100);
    const inGap = (drawn?.line.x ?? []).filter(
      (time, place) => drawn?.line.y[place] !== null && time > 400 && time < 599
    );
    expect(inGap).toEqual([]);
    expect(drawn?.line.y.filter(value => value === null)).toHaveLength(1);
    expect(drawn?.band?.y?.filter(value => value === null)).toHaveLength(2);
  });

  it('draws the bounds that come with means, however few', () => {
    const means = { ...line([5, 6], 100), low: [1, 2], high: [9, 8] };
    const drawn = bandedLine(means, RANGE, 100);
    expect(drawn?.line.y).toEqual([5, 6]);
    expect(drawn?.band?.y).toEqual([9, 8, 2, 1, null]);
  });

  it('draws no band around a constant', () => {
    expect(bandedLine(line(new Array<number>(1000).fill(3), 1), RANGE, 100)?.band).toBeNull();
  });
});
