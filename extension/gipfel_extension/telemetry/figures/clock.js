/**
 * Display of times in the browser's time zone, or in UTC where the user chose it, for panel, widgets and report.
 *
 * Times are UTC in milliseconds since the epoch and are shown in the browser's time zone, in 24 hours, with the
 * zone's name. plotly.js interprets numbers in the browser's zone but returns and labels times without a zone.
 * Therefore `localTimeFigure` gives it local times as text, and `parseUtcMs` converts the times that it returns.
 */

/** Key of the choice in `localStorage`, which pages and widgets of an origin share; the hub's pages read it, too. */
const CLOCK = 'gipfel.clock';
/** A language has names for the zones of its own countries only, and offsets for all others. */
const LANGUAGES = ['en', 'en-GB', 'en-US', 'en-AU', 'en-IN'];
const OFFSET = /^(GMT|UTC)[+\-\u2212]/;

/** Return true if the user chose UTC in this browser; a page without storage, as a report, has it after its `#`. */
export function isUtcChosen() {
  try {
    return localStorage.getItem(CLOCK) === 'UTC' || location.hash === '#utc';
  } catch {
    return globalThis.location?.hash === '#utc';
  }
}

/** Choose UTC, or the browser's time zone. */
export function chooseUtc(chosen) {
  try {
    if (chosen) {
      localStorage.setItem(CLOCK, 'UTC');
    } else {
      localStorage.removeItem(CLOCK);
    }
  } catch {
    // Times stay in the browser's zone.
  }
}

/** Return the offset from UTC of the times that are shown at a time, in milliseconds. */
export function utcOffsetMs(timeMs) {
  const minutes = isUtcChosen() ? 0 : new Date(timeMs).getTimezoneOffset();
  return Number.isFinite(minutes) ? 60000 * (0 - minutes) : 0;
}

/** Return the short name of the time zone at a time, such as `CET`, `PST` or `UTC`; `GMT+5:45` if it has none. */
export function zoneName(timeMs) {
  const zone = isUtcChosen() ? { timeZone: 'UTC' } : {};
  const names = LANGUAGES.map(language => {
    const parts = new Intl.DateTimeFormat(language, { timeZoneName: 'short', ...zone }).formatToParts(timeMs);
    return parts.find(part => part.type === 'timeZoneName')?.value ?? '';
  });
  return names.find(name => !OFFSET.test(name)) ?? names[0];
}

/** Return a local time of day with seconds and without zone, `14:53:07`. */
export function formatTimeOfDay(timeMs) {
  return localTimeText(timeMs, utcOffsetMs(timeMs)).slice(11, 19);
}

/** Return a local time to the minute with its zone, `14:53 CET`, and with the date unless it is that of `nowMs`. */
export function formatLocalTime(timeMs, nowMs = Date.now()) {
  const [day, time] = localTimeText(timeMs, utcOffsetMs(timeMs)).split('T');
  const today = localTimeText(nowMs, utcOffsetMs(nowMs)).startsWith(day);
  return `${today ? '' : `${day} `}${time.slice(0, 5)} ${zoneName(timeMs)}`;
}

/** Return a local time range with its zone, `14:53:07 – 14:55:00 CET`, and with dates other than `nowMs`'s. */
export function formatTimeRange(sinceMs, untilMs, nowMs = Date.now()) {
  const offsetMs = utcOffsetMs(sinceMs);
  const [first, last] = [sinceMs, untilMs].map(time => localTimeText(time, offsetMs).split('T'));
  const today = localTimeText(nowMs, utcOffsetMs(nowMs)).slice(0, 10);
  const begin = `${first[0] === today ? '' : `${first[0]} `}${first[1].slice(0, 8)}`;
  const end = `${last[0] === first[0] ? '' : `${last[0]} `}${last[1].slice(0, 8)}`;
  return `${begin} – ${end} ${zoneName(sinceMs)}`;
}

/** Return a text with its UTC times, such as `2026-11-22 13:53:07 UTC`, converted to local time. */
export function inLocalTime(text, nowMs = Date.now()) {
  return text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC/g, (_, day, minutes, seconds) => {
    return formatLocalTime(Date.parse(`${day}T${minutes}${seconds ?? ''}Z`), nowMs);
  });
}

/** Return a time as text for plotly.js, `2026-11-22T14:53:07.000`, with an offset from UTC in milliseconds. */
export function localTimeText(timeMs, offsetMs) {
  const time = new Date(timeMs + offsetMs);
  return Number.isNaN(time.getTime()) ? '' : time.toISOString().slice(0, -1);
}

/** Return UTC in milliseconds of a time from plotly.js on an axis with an offset from UTC. */
export function parseUtcMs(time, offsetMs) {
  return typeof time === 'number' ? time : Date.parse(`${String(time).replace(' ', 'T')}Z`) - offsetMs;
}

/** Return a copy of a figure in local time, with `offsetMs`, the offset from UTC in milliseconds. */
export function localTimeFigure(figure) {
  const layout = figure.layout ?? {};
  const offsetMs = utcOffsetMs(newestTime(layout, figure.data ?? []));
  const data = (figure.data ?? []).map(trace => ({ ...trace, ...localTimes(trace, layout, offsetMs) }));
  return { data, layout: localTimeLayout(layout, offsetMs), offsetMs };
}

/** Return `x` or `x0` of a trace on a time axis as text for plotly.js; `text` may be a caching formatter. */
export function localTimes(trace, layout, offsetMs, text = localTimeText) {
  const axis = axisOf(layout, trace.xaxis);
  if (axis?.type !== 'date') {
    return {};
  }
  const shift = isUtc(axis) ? offsetMs : 0;
  const shown = time => text(parseUtcMs(time, 0), shift);
  return {
    ...(Array.isArray(trace.x) ? { x: trace.x.map(shown) } : {}),
    ...(trace.x0 === undefined ? {} : { x0: shown(trace.x0) })
  };
}

/** Return a layout with its time axes, shapes and annotations in local time, and with the zone's name. */
export function localTimeLayout(layout, offsetMs) {
  const result = { ...layout };
  const moved = mark => {
    const axis = /^x\d*$/.test(mark.xref ?? 'x') ? axisOf(layout, mark.xref) : undefined;
    const names = axis?.type === 'date' ? ['x', 'x0', 'x1'].filter(name => mark[name] !== undefined) : [];
    const shift = axis && isUtc(axis) ? offsetMs : 0;
    return { ...mark, ...Object.fromEntries(names.map(name => [name, localTimeText(parseUtcMs(mark[name], 0), shift)])) };
  };
  for (const [key, axis] of Object.entries(layout)) {
    if (/^xaxis\d*$/.test(key) && axis.type === 'date') {
      result[key] = localTimeAxis(axis, isUtc(axis) ? offsetMs : 0);
    }
  }
  for (const key of ['shapes', 'annotations'].filter(each => Array.isArray(layout[each]))) {
    result[key] = layout[key].map(moved);
  }
  return result;
}

function localTimeAxis(axis, offsetMs) {
  const range = axis.range?.map(end => parseUtcMs(end, 0));
  const shown = { ...axis, ...(range ? { range: range.map(end => localTimeText(end, offsetMs)) } : {}) };
  if (isUtc(axis)) {
    const zone = zoneName(range?.[1] ?? Date.now());
    shown.hoverformat = axis.hoverformat.replace(/UTC$/, zone);
    if (axis.title?.text === 'UTC') {
      shown.title = { ...axis.title, text: zone };
    }
  }
  return shown;
}

/** Return whether an axis shows UTC rather than the time since a run's start. */
function isUtc(axis) {
  return axis.hoverformat?.endsWith('UTC') === true;
}

function axisOf(layout, name) {
  return layout[`xaxis${(name ?? 'x').slice(1)}`];
}

/** Return the end of the figure's time axis: its offset applies to the whole figure, also across a change. */
function newestTime(layout, data) {
  const end = layout.xaxis?.range?.[1] ?? data[0]?.x?.at?.(-1);
  return end === undefined ? Date.now() : parseUtcMs(end, 0);
}
