import { Tour } from '../../src/panel/tour';

const steps = [
  { text: 'welcome' },
  { section: 'vetting', text: 'nodes' },
  { section: 'quota', text: 'space' },
  { text: 'end' }
];

function tourOf(): { tour: Tour; selected: string[] } {
  const selected: string[] = [];
  const tour = new Tour(
    steps,
    id => id !== 'quota',
    id => selected.push(id)
  );
  return { tour, selected };
}

describe('Tour', () => {
  it('leaves out sections that the site has disabled', () => {
    expect(tourOf().tour.steps.map(each => each.text)).toEqual(['welcome', 'nodes', 'end']);
  });

  it('shows the section that a step is about', () => {
    const { tour, selected } = tourOf();
    expect(tour.position).toBeNull();
    tour.go(0);
    expect(selected).toEqual([]);
    tour.go(1);
    expect(selected).toEqual(['vetting']);
  });

  it('ends past the last step', () => {
    const { tour } = tourOf();
    tour.go(2);
    expect(tour.position).toBe(2);
    tour.go(3);
    expect(tour.position).toBeNull();
  });
});
