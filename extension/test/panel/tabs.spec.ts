import { neighbour } from '../../src/panel/tabs';

describe('neighbour', () => {
  it.each([
    ['ArrowRight', 0, 1],
    ['ArrowRight', 2, 0],
    ['ArrowLeft', 0, 2],
    ['Home', 2, 0],
    ['End', 0, 2]
  ])('selects with %s from %i the tab %i', (key, now, next) => {
    expect(neighbour(key, now, 3)).toBe(next);
  });

  it('leaves other keys to JupyterLab', () => {
    expect(neighbour('Enter', 0, 3)).toBeNull();
  });
});
