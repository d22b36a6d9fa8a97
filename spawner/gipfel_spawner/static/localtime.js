// Shows every <time class="gipfel-local"> of the hub's pages, also those that a page adds later, in the browser's time
// zone, or in UTC if the user chose it, with the zone's name. data-show is the format of the text (see `format`);
// without it, only the title is set.
"use strict";
window.gipfelTime = (() => {
  // A language has names for the zones of its own countries only, and offsets for all others.
  const LANGUAGES = [undefined, "en-GB", "en-US", "en-AU", "en-IN"];
  const OFFSET = /^(GMT|UTC)[+\-\u2212]/;
  // The key in localStorage; notebook servers' pages of this origin use it as well.
  const CLOCK = "gipfel.clock";
  const utc = () => localStorage.getItem(CLOCK) === "UTC";
  const chosen = () => (utc() ? { timeZone: "UTC" } : {});

  /** Return the name of the browser's time zone at a moment, such as `CET`; its offset if it has no short name. */
  function zone(moment) {
    const names = LANGUAGES.map((language) => {
      const parts = new Intl.DateTimeFormat(language, { timeZoneName: "short", ...chosen() }).formatToParts(moment);
      return parts.find((each) => each.type === "timeZoneName").value;
    });
    return names.find((name) => !OFFSET.test(name)) || names[0];
  }

  /** Return a moment as `moment` (date and time), `second` (with seconds), `near` (without today's date) or `clock`
   * (hours to seconds). */
  function format(moment, show) {
    if (show === "clock") {
      const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", ...chosen() };
      return `${moment.toLocaleTimeString(undefined, options)} ${zone(moment)}`;
    }
    const now = new Date();
    const options = { hour: "2-digit", minute: "2-digit", ...chosen() };
    if (show === "second") {
      options.second = "2-digit";
    }
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
      each.title = `${each.dataset.prefix || ""}${format(moment, each.dataset.show === "second" ? "second" : "moment")}`;
      if (each.dataset.show) {
        each.textContent = format(moment, each.dataset.show);
      }
    }
  }

  /** A button with the name of the zone, which switches between local time and UTC. */
  function showClock(button) {
    button.textContent = utc() ? "UTC" : zone(new Date());
    button.setAttribute("aria-pressed", String(utc()));
    button.title = utc() ? "Times are in UTC. Show them in the browser's time zone." : "Show times in UTC";
    button.hidden = false;
  }

  for (const button of document.querySelectorAll("[data-gipfel-clock]")) {
    showClock(button);
    button.addEventListener("click", () => {
      if (utc()) {
        localStorage.removeItem(CLOCK);
      } else {
        localStorage.setItem(CLOCK, "UTC");
      }
      showClock(button);
      document.querySelectorAll("time.gipfel-local").forEach((each) => delete each.dataset.zone);
      localize(document);
    });
  }
  localize(document);
  new MutationObserver(() => localize(document)).observe(document.body, { childList: true, subtree: true });
  return { zone, format };
})();
