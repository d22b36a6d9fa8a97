import { isLayout } from '../../src/job/header';

describe('the field for roles', () => {
  it.each(['pp=2,dp=4', 'pp=2, dp=4, tp=8'])('takes %p as a parallel layout', text => {
    expect(isLayout(text)).toBe(true);
  });

  it.each(['', 'pp=1', 'pp=6,7', 'pp=6,7 & dp=0', 'rank=0-7', 'node=nid1,nid2'])(
    'takes %p as a selection of ranks',
    text => {
      expect(isLayout(text)).toBe(false);
    }
  );
});
