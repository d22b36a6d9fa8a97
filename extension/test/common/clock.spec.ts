import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { chooseUtc, formatLocalTime, formatTimeOfDay, utcOffsetMs, zoneName } from '../../src/common/clock';

const WINTER = Date.parse('2026-01-15T13:32:07Z');

afterEach(() => {
  chooseUtc(false);
});

describe('the clock', () => {
  it('is the zone of the browser, by the name that people use for it', () => {
    const offsets: Readonly<Record<string, string>> = {
      UTC: 'UTC',
      'Europe/Zurich': 'CET',
      'America/Los_Angeles': 'PST'
    };
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    expect(zoneName(WINTER)).toBe(offsets[zone] ?? zoneName(WINTER));
    expect(utcOffsetMs(WINTER)).toBe(60_000 * (0 - new Date(WINTER).getTimezoneOffset()));
  });

  it('is UTC in all forms once that was chosen, and local again afterwards', () => {
    const before = formatLocalTime(WINTER, WINTER);
    chooseUtc(true);
    expect(formatLocalTime(WINTER, WINTER)).toBe('13:32 UTC');
    expect(formatTimeOfDay(WINTER)).toBe('13:32:07');
    expect(utcOffsetMs(WINTER)).toBe(0);
    chooseUtc(false);
    expect(formatLocalTime(WINTER, WINTER)).toBe(before);
  });
});

/** Return the texts of all modules by their paths. */
function modules(directory: string): [string, string][] {
  return readdirSync(directory, { withFileTypes: true }).flatMap((each): [string, string][] => {
    const path = join(directory, each.name);
    if (each.isDirectory()) {
      return modules(path);
    }
    return /\.tsx?$/.test(each.name) ? [[path, readFileSync(path, 'utf8')]] : [];
  });
}

describe('the modules that show times', () => {
  const sources = modules(join(__dirname, '../../src'));

  it('show them by the clock, which names the zone', () => {
    const own = sources.filter(([, text]) =>
      /toLocale(Time|Date)String|\bDate\([^)]*\)\.toLocaleString/.test(text)
    );
    expect(own.map(([path]) => path)).toEqual([]);
  });

  it('write the zone beside a time of day, which has none', () => {
    const without = sources.filter(
      ([, text]) => text.includes('formatTimeOfDay(') && !text.includes('zoneName(')
    );
    expect(without.map(([path]) => path)).toEqual([]);
  });
});
