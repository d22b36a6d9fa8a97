/**
 * The reader's clock: the one way in which panel, widgets and report show a time.
 *
 * Times come as UTC in milliseconds since the epoch and are shown in the zone of the browser, 24 hours, with the
 * zone's name beside them. plotly.js takes a number for a time of the browser's zone but answers and labels without
 * one, so it is given text of the reader's wall clock alone (`readersFigure`), and what it answers is taken back
 * with `utcOf`.
 */

/** Milliseconds that the reader's clock is ahead of UTC at a time. */
export function aheadMs(timeMs) {
  const minutes = new Date(timeMs).getTimezoneOffset();
  return Number.isFinite(minutes) ? -60000 * minutes : 0;
}

/** The zone's short name at a time, such as `GMT+1`, `PST` or `UTC`. */
export function zoneName(timeMs) {
  const parts = new Intl.DateTimeFormat('en', { timeZoneName: 'short' }).formatToParts(timeMs);
  return parts.find(part => part.type === 'timeZoneName')?.value ?? '';
}

/** A time of day to the second, `14:53:07`, where the zone is named beside it. */
export function clockTime(timeMs) {
  return wallText(timeMs, aheadMs(timeMs)).slice(11, 19);
}

/** A time to the minute with its zone, `14:53 GMT+1`; with the day, unless it is `nowMs`'s. */
export function clockMoment(timeMs, nowMs = Date.now()) {
  const [day, time] = wallText(timeMs, aheadMs(timeMs)).split('T');
  const today = wallText(nowMs, aheadMs(nowMs)).startsWith(day);
  return `${today ? '' : `${day} `}${time.slice(0, 5)} ${zoneName(timeMs)}`;
}

/** Two times to the second with their zone, `14:53:07 – 14:55:00 GMT+1`; with the day where it is not `nowMs`'s. */
export function clockRange(sinceMs, untilMs, nowMs = Date.now()) {
  const ahead = aheadMs(sinceMs);
  const [first, last] = [sinceMs, untilMs].map(time => wallText(time, ahead).split('T'));
  const today = wallText(nowMs, aheadMs(nowMs)).slice(0, 10);
  const begin = `${first[0] === today ? '' : `${first[0]} `}${first[1].slice(0, 8)}`;
  const end = `${last[0] === first[0] ? '' : `${last[0]} `}${last[1].slice(0, 8)}`;
  return `${begin} – ${end} ${zoneName(sinceMs)}`;
}

/** A server's sentence with its times, `2026-11-22 13:53:07 UTC`, on the reader's clock. */
export function onReadersClock(text, nowMs = Date.now()) {
  return text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC/g, (_, day, minutes, seconds) => {
    return clockMoment(Date.parse(`${day}T${minutes}${seconds ?? ''}Z`), nowMs);
  });
}

/** A time as plotly.js reads it, `2026-11-22T14:53:07.000`, on a clock so far ahead of UTC. */
export function wallText(timeMs, ahead) {
  const time = new Date(timeMs + ahead);
  return Number.isNaN(time.getTime()) ? '' : time.toISOString().slice(0, -1);
}

/** UTC in milliseconds of what plotly.js says on an axis whose clock is so far ahead. */
export function utcOf(said, ahead) {
  return typeof said === 'number' ? said : Date.parse(`${String(said).replace(' ', 'T')}Z`) - ahead;
}

/** A figure as `{data, layout}` on the reader's clock, with how far that `ahead` of UTC is; the given one stays. */
export function readersFigure(figure) {
  const layout = figure.layout ?? {};
  const ahead = aheadMs(newestTime(layout, figure.data ?? []));
  const data = (figure.data ?? []).map(trace => ({ ...trace, ...readersTimes(trace, layout, ahead) }));
  return { data, layout: readersLayout(layout, ahead), ahead };
}

/** `x` or `x0` of a trace on a time axis as plotly.js draws them; `text` may remember texts of times. */
export function readersTimes(trace, layout, ahead, text = wallText) {
  const axis = axisOf(layout, trace.xaxis);
  if (axis?.type !== 'date') {
    return {};
  }
  const shift = isUtc(axis) ? ahead : 0;
  const shown = time => text(utcOf(time, 0), shift);
  return {
    ...(Array.isArray(trace.x) ? { x: trace.x.map(shown) } : {}),
    ...(trace.x0 === undefined ? {} : { x0: shown(trace.x0) })
  };
}

/** A layout whose time axes, shapes and notes are on a clock so far ahead of UTC, with its zone's name. */
export function readersLayout(layout, ahead) {
  const result = { ...layout };
  const moved = mark => {
    const axis = /^x\d*$/.test(mark.xref ?? 'x') ? axisOf(layout, mark.xref) : undefined;
    const names = axis?.type === 'date' ? ['x', 'x0', 'x1'].filter(name => mark[name] !== undefined) : [];
    const shift = axis && isUtc(axis) ? ahead : 0;
    return { ...mark, ...Object.fromEntries(names.map(name => [name, wallText(utcOf(mark[name], 0), shift)])) };
  };
  for (const [key, axis] of Object.entries(layout)) {
    if (/^xaxis\d*$/.test(key) && axis.type === 'date') {
      result[key] = readersAxis(axis, isUtc(axis) ? ahead : 0);
    }
  }
  for (const key of ['shapes', 'annotations'].filter(each => Array.isArray(layout[each]))) {
    result[key] = layout[key].map(moved);
  }
  return result;
}

function readersAxis(axis, ahead) {
  const range = axis.range?.map(end => utcOf(end, 0));
  const shown = { ...axis, ...(range ? { range: range.map(end => wallText(end, ahead)) } : {}) };
  if (isUtc(axis)) {
    const zone = zoneName(range?.[1] ?? Date.now());
    shown.hoverformat = axis.hoverformat.replace(/UTC$/, zone);
    if (axis.title?.text === 'UTC') {
      shown.title = { ...axis.title, text: zone };
    }
  }
  return shown;
}

/** Whether an axis shows UTC, rather than the time since a run began. */
function isUtc(axis) {
  return axis.hoverformat?.endsWith('UTC') === true;
}

function axisOf(layout, name) {
  return layout[`xaxis${(name ?? 'x').slice(1)}`];
}

/** The end of the figure's time axis: one clock for all of it, also where the zone's changes on the way. */
function newestTime(layout, data) {
  const end = layout.xaxis?.range?.[1] ?? data[0]?.x?.at?.(-1);
  return end === undefined ? Date.now() : utcOf(end, 0);
}
