import { JobSelection } from '../../src/job/selection';

describe('the selection of the job page', () => {
  it('adds to a pick, takes from it, and clears it by the same click', () => {
    const selection = new JobSelection();
    selection.choose('rank', ['4']);
    selection.choose('rank', ['5', '9'], true);
    expect(selection.pickExpression).toBe('rank=4-5,9');
    selection.choose('rank', ['5'], true);
    expect(selection.pickExpression).toBe('rank=4,9');
    selection.choose('node', ['nid1']);
    expect(selection.pickExpression).toBe('node=nid1');
    selection.choose('node', ['nid1']);
    expect(selection.pick).toBeNull();
  });

  it('keeps the roles under a pick, and returns to them', () => {
    const selection = new JobSelection();
    selection.setExpression('pp=1');
    selection.choose('rank', ['4']);
    selection.clear();
    expect([selection.expression, selection.pick]).toEqual(['pp=1', null]);
    selection.clear();
    expect(selection.some).toBe(false);
  });

  it('refuses names that an expression can not hold, and picks that are too long', () => {
    const selection = new JobSelection();
    selection.choose('node', ['a,b', 'c&d', '', 'x\ny']);
    expect(selection.pick).toBeNull();
    selection.choose(
      'node',
      Array.from({ length: 200 }, (_, place) => `node-with-a-long-name-${place}`)
    );
    expect(selection.pick).toBeNull();
  });

  it('emits once for each change, not for the same value, and the cursor apart', () => {
    const selection = new JobSelection();
    let changes = 0;
    let moves = 0;
    selection.changed.connect(() => changes++);
    selection.cursorMoved.connect(() => moves++);
    selection.setExpression('pp=1');
    selection.setExpression('pp=1');
    selection.setCursor(5);
    selection.setCursor(5);
    expect([changes, moves]).toEqual([1, 1]);
  });

  it('forgets everything of a run when another is shown', () => {
    const selection = new JobSelection();
    selection.setExpression('pp=1');
    selection.setSpan({ sinceMs: 1, untilMs: 2 });
    selection.setResolved({ ranks: [1], nodes: ['n'], devices: ['d'], group: [1] });
    selection.show('other');
    expect([selection.expression, selection.span, selection.ranks]).toEqual(['', null, []]);
  });
});
