import type { IJobPick, IJobSpan, JobUnit } from '../tokens';
import { isUsable, MOST_CHARACTERS, type ISelectionState } from './selection';

/** Query parameter of JupyterLab's URL that holds the job page. */
export const PARAMETER = 'gipfel-job';
/** JupyterLab's router opens the page for URLs with this. */
export const PATTERN = new RegExp(`[?&]${PARAMETER}=`);

const UNITS: readonly string[] = ['rank', 'node', 'gpu', 'nic', 'switch'];
const LONGEST_NAME = 200;
const MOST_PICKED = 256;

/** What a URL shows: the tab, and the selection. */
export interface IPageLocation extends ISelectionState {
  readonly tab: string;
}

/** Return the value of the URL's parameter for a page. */
export function encodeLocation(place: IPageLocation): string {
  const found = new URLSearchParams({ tab: place.tab });
  const texts = { run: place.run, launch: place.launch, layout: place.layout, roles: place.expression };
  for (const [name, text] of Object.entries(texts)) {
    if (text !== '') {
      found.set(name, text);
    }
  }
  if (place.pick) {
    found.set(place.pick.unit, place.pick.names.join(','));
  }
  if (place.span) {
    found.set('since', String(Math.round(place.span.sinceMs)));
    found.set('until', String(Math.round(place.span.untilMs)));
  }
  if (place.lastS !== null) {
    found.set('last', String(place.lastS));
  }
  return found.toString();
}

/** Return what the value of the URL's parameter shows; parts that are not valid are left out. */
export function decodeLocation(value: string): IPageLocation {
  const given = new URLSearchParams(value);
  const text = (name: string, longest: number): string => {
    const found = given.get(name) ?? '';
    return found.length <= longest && !/\p{Cc}/u.test(found) ? found : '';
  };
  const tab = text('tab', 40);
  return {
    tab: /^[a-z][\w-]*$/i.test(tab) ? tab : '',
    run: text('run', LONGEST_NAME),
    launch: text('launch', LONGEST_NAME + 20),
    layout: text('layout', LONGEST_NAME),
    expression: text('roles', MOST_CHARACTERS),
    pick: pickOf(given),
    span: spanOf(given),
    lastS: lastOf(given)
  };
}

/** Return the page that a URL of JupyterLab shows; null if it shows none. */
export function locationOfUrl(search: string): IPageLocation | null {
  const value = new URLSearchParams(search).get(PARAMETER);
  return value === null ? null : decodeLocation(value);
}

/** Return a URL of JupyterLab with a page, or without one. */
export function urlWith(url: string, place: IPageLocation | null): string {
  const found = new URL(url);
  if (place === null) {
    found.searchParams.delete(PARAMETER);
  } else {
    found.searchParams.set(PARAMETER, encodeLocation(place));
  }
  return found.toString();
}

function pickOf(given: URLSearchParams): IJobPick | null {
  const unit = UNITS.find(each => given.has(each));
  if (unit === undefined) {
    return null;
  }
  const names = (given.get(unit) ?? '').split(',').filter(isUsable).slice(0, MOST_PICKED);
  const valid = unit === 'rank' ? names.filter(name => /^\d{1,8}$/.test(name)) : names;
  return valid.length > 0 ? { unit: unit as JobUnit, names: valid } : null;
}

function spanOf(given: URLSearchParams): IJobSpan | null {
  const [sinceMs, untilMs] = ['since', 'until'].map(name => {
    const found = given.get(name) ?? '';
    return /^\d{1,15}$/.test(found) ? Number(found) : NaN;
  });
  return sinceMs !== undefined && untilMs !== undefined && sinceMs < untilMs ? { sinceMs, untilMs } : null;
}

function lastOf(given: URLSearchParams): number | null {
  const found = given.get('last') ?? '';
  return /^[1-9]\d{0,7}$/.test(found) ? Number(found) : null;
}
