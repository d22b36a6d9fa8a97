// Time limits in Slurm's syntax and with units; gipfel_cluster/scheduler/notation.py parses the same forms.
"use strict";
globalThis.gipfelDuration = (() => {
  const DAYS = /^([0-9]{1,5})-([0-9]{1,3})(?::([0-9]{1,3})(?::([0-9]{1,3}))?)?$/;
  const CLOCK = /^([0-9]{1,6})(?::([0-9]{1,3})(?::([0-9]{1,3}))?)?$/;
  const PART = /^([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)\s*/;
  const UNITS = [
    ["s", "sec", "secs", "second", "seconds"],
    ["m", "min", "mins", "minute", "minutes"],
    ["h", "hr", "hrs", "hour", "hours"],
    ["d", "day", "days"],
  ];
  const SECONDS = [1, 60, 3600, 86400];
  const MAX_SECONDS = 99999 * 86400;

  /** Return the seconds of a text such as `1 d 12 h`; NaN if it is not a duration. */
  function parseUnits(text) {
    const used = new Set();
    let total = 0;
    let rest = text.toLowerCase();
    for (let part = PART.exec(rest); part; part = PART.exec(rest)) {
      const unit = UNITS.findIndex((names) => names.includes(part[2]));
      if (unit === -1 || used.has(unit)) {
        return NaN;
      }
      used.add(unit);
      total += Number(part[1]) * SECONDS[unit];
      rest = rest.slice(part[0].length);
    }
    return rest || used.size === 0 || total > MAX_SECONDS ? NaN : Math.floor(total + 0.5);
  }

  /** Return the seconds of a time limit: Infinity for no limit, NaN for a text that is not valid. */
  function seconds(text) {
    const limit = text.trim();
    if (["UNLIMITED", "INFINITE"].includes(limit.toUpperCase())) {
      return Infinity;
    }
    const days = DAYS.exec(limit);
    if (days) {
      const [, day, hour, minute, second] = days.map((each) => Number(each || 0));
      return ((day * 24 + hour) * 60 + minute) * 60 + second;
    }
    const clock = CLOCK.exec(limit);
    if (clock) {
      const [, first, second, third] = clock.map((each) => Number(each || 0));
      return clock[3] === undefined ? first * 60 + second : (first * 60 + second) * 60 + third;
    }
    return parseUnits(limit);
  }

  /** Return a number of seconds with units, such as `1 d 12 h`. */
  function format(total) {
    if (total === Infinity) {
      return "no time limit";
    }
    const parts = [
      [Math.floor(total / 86400), "d"],
      [Math.floor(total / 3600) % 24, "h"],
      [Math.floor(total / 60) % 60, "min"],
      [total % 60, "s"],
    ];
    return parts
      .filter(([number]) => number)
      .map(([number, unit]) => `${number} ${unit}`)
      .join(" ");
  }

  return { seconds, format };
})();
