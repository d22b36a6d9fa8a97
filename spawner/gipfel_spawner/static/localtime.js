// Times of the hub's pages in the browser's time zone, with the zone's name: every <time class="gipfel-local">,
// also those that a page adds later. data-show is the form of its text; without it only the title is set.
"use strict";
window.gipfelTime = (() => {
  // A language has names for the zones of its own countries only, and offsets for all others.
  const LANGUAGES = [undefined, "en-GB", "en-US", "en-AU", "en-IN"];
  const OFFSET = /^(GMT|UTC)[+\-\u2212]/;

  /** Return the name of the browser's time zone at a moment, such as `CET`; its offset if it has no short name. */
  function zone(moment) {
    const names = LANGUAGES.map((language) => {
      const parts = new Intl.DateTimeFormat(language, { timeZoneName: "short" }).formatToParts(moment);
      return parts.find((each) => each.type === "timeZoneName").value;
    });
    return names.find((name) => !OFFSET.test(name)) || names[0];
  }

  /** Return a moment as `moment` (date and time), `near` (without today's date) or `clock` (with seconds). */
  function format(moment, show) {
    if (show === "clock") {
      return moment.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    }
    const now = new Date();
    const options = { hour: "2-digit", minute: "2-digit" };
    if (show !== "near" || moment.toDateString() !== now.toDateString()) {
      Object.assign(options, { month: "short", day: "numeric" });
      if (moment.getFullYear() !== now.getFullYear()) {
        options.year = "numeric";
      }
    }
    return `${moment.toLocaleString(undefined, options)} ${zone(moment)}`;
  }

  function localize(root) {
    for (const each of root.querySelectorAll("time.gipfel-local:not([data-zone])")) {
      const moment = new Date(each.dateTime);
      if (Number.isNaN(moment.getTime())) {
        continue;
      }
      each.dataset.zone = zone(moment);
      each.title = `${each.dataset.prefix || ""}${format(moment, "moment")}`;
      if (each.dataset.show) {
        each.textContent = format(moment, each.dataset.show);
      }
    }
  }

  localize(document);
  new MutationObserver(() => localize(document)).observe(document.body, { childList: true, subtree: true });
  return { zone, format };
})();
