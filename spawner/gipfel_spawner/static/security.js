// The verdict on the image of the chosen environment: known vulnerabilities, their age, the site's policy.
"use strict";
(() => {
  const SHAPES = { pass: "✓", warn: "⚠", fail: "✗", unknown: "?" };
  const { element } = window.gipfelEdfCheck;

  /** Return what was found with the line to change, what could not be judged, and what was excepted, by whom and until when. */
  function lines(verdict) {
    const excepted = verdict.excepted.map((each) => {
      const by = each.by ? `by ${each.by} ` : "";
      return `Excepted: ${each.rule} in ${each.path}, ${by}until ${each.until}: ${each.reason}`;
    });
    // A server's older scanner names no lines to change.
    const fixes = verdict.fixes || [];
    const worst = verdict.worst.map((each, number) => (fixes[number] ? `${each}. ${fixes[number]}` : each));
    return [...worst, ...verdict.not_judged.map((each) => `Could not be judged: ${each}`), ...excepted];
  }

  /** Return a verdict as an element: one line, what to do, and the rest to unfold. */
  function box(verdict) {
    const refused = verdict.level === "fail";
    const made = element("div", "", `gipfel-security mt-2 ${refused ? "alert alert-danger mb-0 px-3 py-2" : "small"}`);
    made.dataset.level = verdict.level;
    const words = refused ? "The site refuses this image. " : "";
    made.append(element("div", `${SHAPES[verdict.level] || "?"} ${words}${verdict.line}`));
    if (verdict.fix) {
      made.append(element("div", verdict.fix, refused ? "" : "text-body-secondary"));
    }
    const found = lines(verdict);
    if (found.length) {
      const details = document.createElement("details");
      const list = element("ul", "", "mb-0");
      list.append(...found.map((each) => element("li", each)));
      details.append(element("summary", "Known vulnerabilities and exceptions"), list);
      made.append(details);
    }
    return made;
  }

  /**
   * Show what is known of the image of an environment below its check, and return the verdict.
   *
   * A site without advisories shows nothing. An aborted request throws, as the check before it does.
   */
  async function show(container, content, ask, signal) {
    const waiting = element("div", "Looking up known vulnerabilities of the image…", "text-body-secondary mt-2 small");
    container.append(waiting);
    let verdict = {};
    try {
      verdict = await ask("security", content, signal);
    } catch (error) {
      if (error.name === "AbortError") {
        throw error;
      }
      verdict = { problem: error.message };
    }
    if (verdict.level) {
      waiting.replaceWith(box(verdict));
    } else if (verdict.problem) {
      waiting.textContent = `? The image could not be judged: ${verdict.problem}`;
    } else {
      waiting.remove();
    }
    return verdict;
  }

  window.gipfelSecurity = { show };
})();
