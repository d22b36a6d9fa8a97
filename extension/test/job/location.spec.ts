import {
  decodeLocation,
  encodeLocation,
  locationOfUrl,
  urlWith,
  type IPageLocation
} from '../../src/job/location';
import { FIRST_VIEW } from '../../src/job/selection';

const PLACE: IPageLocation = {
  tab: 'ranks',
  run: 'alps-48812',
  launch: 'alps-48812/7',
  layout: 'pp=2,dp=4',
  expression: 'pp=6,7 & dp=0',
  pick: { unit: 'rank', names: ['3', '5'] },
  span: { sinceMs: 1_800_000_000_000, untilMs: 1_800_000_060_000 },
  lastS: 900,
  view: {
    metric: 'POWER_USAGE',
    order: 'switch',
    names: ['loss', 'a,b & c=1'],
    bands: ['DRAM_ACTIVE', 'SM_ACTIVE'],
    sort: 'node',
    down: true,
    kind: 'slow_rank',
    beside: ['alps-1', 'alps-2']
  }
};

describe('the URL of the job page', () => {
  it('restores tab, run, roles, pick and time range, beside what JupyterLab has there', () => {
    const url = urlWith('http://host/user/ada/lab/tree/a%20b.ipynb?reset&x=1', PLACE);
    expect(locationOfUrl(new URL(url).search)).toEqual(PLACE);
    expect(new URL(url).pathname).toBe('/user/ada/lab/tree/a%20b.ipynb');
    expect(new URL(url).searchParams.get('x')).toBe('1');
    expect(urlWith(url, null)).not.toContain('gipfel-job');
    expect(locationOfUrl('?reset')).toBeNull();
  });

  it('omits a view that has not been changed, and keeps the choice of no metric', () => {
    expect(encodeLocation({ ...PLACE, view: FIRST_VIEW })).not.toMatch(
      /heat|rows|name|band|sort|kind|beside/
    );
    const none = { ...FIRST_VIEW, names: [], bands: [], sort: 'rank', down: true };
    expect(decodeLocation(encodeLocation({ ...PLACE, view: none })).view).toEqual(none);
  });

  it.each([
    ['heat=NOPE&rows=size&sort=-size&kind=A', { view: FIRST_VIEW }],
    ['band=NOPE', { view: { ...FIRST_VIEW, bands: [] } }],
    ['name=a&name=a&name=b%0A', { view: { ...FIRST_VIEW, names: ['a'] } }],
    ['tab=<script>', { tab: '' }],
    ['run=a%0Ab', { run: '' }],
    [`run=${'a'.repeat(201)}`, { run: '' }],
    [`roles=${'a'.repeat(1001)}`, { expression: '' }],
    ['rank=1,x,-2,%3Cb%3E', { pick: { unit: 'rank', names: ['1'] } }],
    ['node=a%20b', { pick: null }],
    ['since=5&until=4', { span: null }],
    ['since=-1&until=4', { span: null }],
    ['since=1e999&until=Infinity', { span: null }],
    ['last=0', { lastS: null }],
    ['last=-5', { lastS: null }],
    ['last=1e9', { lastS: null }]
  ])('leaves out what is not valid: %s', (value, part) => {
    expect(decodeLocation(value)).toMatchObject(part);
    expect(decodeLocation(encodeLocation(decodeLocation(value)))).toEqual(decodeLocation(value));
  });
});
