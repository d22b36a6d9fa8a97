import { HEAT_METRICS, ROW_ORDERS } from '../api';
import type { IJobPick, IJobSpan, JobUnit } from '../tokens';
import { RANK_COLUMNS } from './rank-rows';
import { FIRST_VIEW, isUsable, MOST_CHARACTERS, type ISelectionState, type IViewChoices } from './selection';

/** Query parameter of JupyterLab's URL that holds the job page. */
export const PARAMETER = 'gipfel-job';
/** JupyterLab's router opens the page for URLs with this. */
export const PATTERN = new RegExp(`[?&]${PARAMETER}=`);

const UNITS: readonly string[] = ['rank', 'node', 'gpu', 'nic', 'switch'];
const LONGEST_NAME = 200;
const MOST_PICKED = 256;
/** As many users' metrics as the server draws at a time. */
export const MOST_NAMES = 12;
/** As many earlier runs as the server compares with. */
const MOST_BESIDE = 20;
/**
 * Query parameters of a view's choices with one value: the heat map's metric, the order of its rows, the kind of
 * events. `sort` is encoded apart; `name` (users' metrics), `band` (metrics that the overview draws as strips) and
 * `beside` (earlier runs) may be repeated.
 */
const VIEW_WORDS = { metric: 'heat', order: 'rows', kind: 'kind' } as const;

/** What a URL shows: the tab, and the selection. */
export interface IPageLocation extends ISelectionState {
  readonly tab: string;
}

/** Return the value of the URL's parameter for a page; without `view`, the page has the defaults of FIRST_VIEW. */
export function encodeLocation(place: Omit<IPageLocation, 'view'> & Partial<IPageLocation>): string {
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
  if (place.view) {
    encodeView(place.view, found);
  }
  return found.toString();
}

/** Add what differs from the first view. */
function encodeView(view: IViewChoices, found: URLSearchParams): void {
  for (const [choice, word] of Object.entries(VIEW_WORDS)) {
    const value = view[choice as keyof typeof VIEW_WORDS];
    if (value !== FIRST_VIEW[choice as keyof typeof VIEW_WORDS]) {
      found.set(word, value);
    }
  }
  if (view.sort !== FIRST_VIEW.sort || view.down) {
    found.set('sort', `${view.down ? '-' : ''}${view.sort}`);
  }
  for (const [word, values] of [
    ['beside', view.beside],
    ['name', view.names],
    ['band', view.bands]
  ] as const) {
    // One empty value stands for an empty list; null, which adds nothing, for the default.
    (values?.length === 0 ? [''] : (values ?? [])).forEach(value => {
      found.append(word, value);
    });
  }
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
    lastS: lastOf(given),
    view: viewOf(given)
  };
}

function viewOf(given: URLSearchParams): IViewChoices {
  const one = (word: string, known: readonly string[], otherwise: string): string =>
    known.find(each => each === given.get(word)) ?? otherwise;
  const metrics = HEAT_METRICS.map(([metric]) => metric);
  const sort = given.get('sort') ?? '';
  const column = RANK_COLUMNS.find(each => each === sort.replace(/^-/, ''));
  const kind = given.get(VIEW_WORDS.kind) ?? '';
  return {
    metric: one(VIEW_WORDS.metric, metrics, FIRST_VIEW.metric),
    order: one(VIEW_WORDS.order, ROW_ORDERS, FIRST_VIEW.order),
    names:
      listOf(given, 'name', name => name.length <= LONGEST_NAME && !/\p{Cc}/u.test(name))?.slice(
        0,
        MOST_NAMES
      ) ?? null,
    bands: listOf(given, 'band', name => metrics.includes(name)),
    sort: column ?? FIRST_VIEW.sort,
    down: column !== undefined && sort.startsWith('-'),
    kind: /^[a-z_]{1,40}$/.test(kind) ? kind : '',
    beside: besideOf(given)
  };
}

function besideOf(given: URLSearchParams): readonly string[] | null {
  const found = listOf(given, 'beside', name => name.length <= LONGEST_NAME && isUsable(name));
  return found === null || found.length === 0 ? null : found.slice(0, MOST_BESIDE);
}

/** Return the valid values of a repeated parameter, each once; null if it is not given. */
function listOf(
  given: URLSearchParams,
  word: string,
  isValid: (value: string) => boolean
): readonly string[] | null {
  const values = given.getAll(word);
  return values.length === 0 ? null : [...new Set(values.filter(each => each !== '' && isValid(each)))];
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
