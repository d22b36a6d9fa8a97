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
