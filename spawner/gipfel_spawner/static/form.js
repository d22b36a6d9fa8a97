// The spawn form's live parts: presets, limits of a partition, expected start, and what is wrong with an EDF.
// Without this script the form still starts servers.
"use strict";
(() => {
  const root = document.getElementById("gipfel-form");
  const form = root && root.closest("form");
  if (!form) {
    return;
  }
  const NUMBERS = ["gpus", "nodes", "cpus"];
  const PAUSE_MS = 600;
  const field = (name) => form.elements.namedItem(name);
  const byId = (id) => document.getElementById(id);

  /** Ask the hub, as the user of this page. The answer of the hub, also where it refuses. */
  async function ask(what, content, signal) {
    const answer = await fetch(`${root.dataset.api}/${what}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-XSRFToken": window.jhdata.xsrf_token },
      body: JSON.stringify(content),
      signal,
    });
    const read = await answer.json().catch(() => ({}));
    if (!answer.ok) {
      throw new Error(read.message || `The hub answered ${answer.status}.`);
    }
    return read;
  }

  /** An element with a text; never HTML. */
  function element(tag, text, className) {
    const made = document.createElement(tag);
    made.textContent = text || "";
    made.className = className || "";
    return made;
  }

  /** Without what is right as it is: in the form, an EDF without an image is a choice like any other. */
  function weighty(diagnostics) {
    return diagnostics.filter((each) => each.severity !== "note");
  }

  /** What is wrong with an EDF, and how to put it right, as a list. */
  function diagnosticList(diagnostics) {
    const list = element("ul", "", "gipfel-diagnostics small");
    for (const each of weighty(diagnostics)) {
      const mark = each.severity === "error" ? "✗ Error" : "⚠ Note";
      const place = [each.line ? `line ${each.line}` : "", each.key].filter(Boolean).join(", ");
      const item = element("li", "");
      item.append(element("strong", `${mark}${place ? ` (${place})` : ""}: `));
      item.append(`${each.message} ${each.fix}`.trim());
      list.append(item);
    }
    return list;
  }

  /** How many errors a check has found. */
  function errorsOf(answer) {
    return answer.diagnostics.filter((each) => each.severity === "error").length;
  }

  /** Number of errors and notes in one line; empty for a single error, which is shown itself. */
  function summary(answer) {
    const errors = errorsOf(answer);
    const notes = weighty(answer.diagnostics).length - errors;
    const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
    if (errors === 1 && !notes) {
      return "";
    }
    const parts = [errors ? `✗ ${count(errors, "error")}` : "✓ valid"];
    if (notes) {
      parts.push(`⚠ ${count(notes, "note")}`);
    }
    return parts.join(" · ");
  }

  /** The resolved EDF behind a button. */
  function resolved(edf) {
    const lines = [];
    for (const [key, value] of Object.entries(edf)) {
      if (key === "mounts") {
        value.forEach((each) => {
          const flags = each.flags.length ? `:${each.flags.join("+")}` : "";
          lines.push(`mounts  ${each.source}:${each.destination}${flags}`);
        });
      } else if (Array.isArray(value)) {
        value.forEach((each) => lines.push(`${key}  ${each}`));
      } else if (value !== null && typeof value === "object") {
        Object.entries(value).forEach(([name, each]) => lines.push(`${key}.${name}  ${each}`));
      } else if (value !== "" && value !== null) {
        lines.push(`${key}  ${value}`);
      }
    }
    const details = document.createElement("details");
    details.append(element("summary", "Show the resolved environment"));
    details.append(element("pre", lines.join("\n"), "gipfel-resolved border rounded p-2 small"));
    return details;
  }

  /** What a check of an EDF has brought, into a place of the page. */
  function showCheck(place, answer) {
    const box = element("div", "", errorsOf(answer) ? "alert alert-danger mt-2 mb-0 px-3 py-2" : "");
    box.append(element("span", summary(answer)));
    if (answer.diagnostics.length) {
      box.append(diagnosticList(answer.diagnostics));
    }
    place.replaceChildren(box);
    if (answer.edf) {
      place.append(resolved(answer.edf));
    }
  }

  /** Runs a task a moment after the last call; a newer call ends an older task. */
  function settled(task) {
    let timer = 0;
    let control = null;
    return () => {
      window.clearTimeout(timer);
      if (control) {
        control.abort();
      }
      control = new AbortController();
      const { signal } = control;
      timer = window.setTimeout(() => task(signal), PAUSE_MS);
    };
  }

  /** The options that the form would start with. */
  function options() {
    const chosen = {};
    for (const each of form.elements) {
      if (each.name && each.value !== "" && !each.disabled) {
        chosen[each.name] = NUMBERS.includes(each.name) ? Number(each.value) : each.value;
      }
    }
    if (chosen.edf_path) {
      chosen.edf = chosen.edf_path;
    }
    delete chosen.edf_path;
    delete chosen._xsrf;
    return chosen;
  }

  const startLine = byId("gipfel-start-line");
  const start = byId("gipfel-start");

  const askStart = settled(async (signal) => {
    if (!form.checkValidity()) {
      start.textContent = "unknown (fix the field marked above)";
      return;
    }
    start.textContent = "asking the scheduler…";
    try {
      const answer = await ask("expected-start", options(), signal);
      start.textContent = answer.problem || answer.words;
      start.className = answer.problem ? "text-danger-emphasis" : "";
    } catch (error) {
      if (error.name !== "AbortError") {
        start.textContent = `unknown. ${error.message}`;
      }
    }
  });

  const state = byId("gipfel-edf-state");
  const startButton = form.querySelector("[type=submit]");

  /** The field that names the environment, with the result of a check right below it. */
  function environmentField() {
    const used = field("edf_path").value.trim() ? field("edf_path") : field("edf");
    byId(`${used.id}-help`).after(state);
    return used;
  }

  /** Mark the field of an environment that can't be used, and let Start look like what would fail. */
  function markEnvironment(target, bad) {
    for (const each of [field("edf"), field("edf_path")]) {
      const marked = bad && each === target;
      each.classList.toggle("is-invalid", marked);
      each.toggleAttribute("aria-invalid", marked);
      if (marked) {
        each.setAttribute("aria-invalid", "true");
        each.setAttribute("aria-errormessage", state.id);
      } else {
        each.removeAttribute("aria-errormessage");
      }
    }
    startButton.classList.toggle("btn-jupyter", !bad);
    startButton.classList.toggle("btn-secondary", bad);
  }

  const askEnvironment = settled(async (signal) => {
    const target = environmentField();
    const edf = target.value.trim();
    if (!edf) {
      state.replaceChildren();
      markEnvironment(target, false);
      return;
    }
    state.replaceChildren(element("span", `Checking ${edf}…`, "text-body-secondary"));
    try {
      const { cluster } = options();
      const answer = await ask("environment", cluster ? { edf, cluster } : { edf }, signal);
      if (answer.problem) {
        throw new Error(answer.problem);
      }
      showCheck(state, answer);
      markEnvironment(target, errorsOf(answer) > 0);
      // The last start's message about it is on top of the page, and the answer repeats it.
      root.querySelectorAll("#gipfel-edf-error").forEach((each) => each.remove());
    } catch (error) {
      if (error.name !== "AbortError") {
        state.replaceChildren(element("div", `✗ ${error.message}`, "alert alert-danger mt-2 mb-0 px-3 py-2"));
        markEnvironment(target, true);
      }
    }
  });

  /** Limits and idle GPUs of the chosen partition. */
  function followPartition() {
    const chosen = field("partition").selectedOptions && field("partition").selectedOptions[0];
    if (!chosen) {
      return;
    }
    const { idle, nodes, gpus, cpus } = chosen.dataset;
    byId("gipfel-idle").textContent = idle ? `${chosen.value}: ${idle}` : "";
    field("nodes").max = Number(nodes) || 4096;
    field("cpus").max = Number(cpus) || 4096;
    // Where nothing is known of GPUs, the scheduler refuses what it has not.
    field("gpus").max = chosen.dataset.gpusKnown ? Number(gpus) : Number(gpus) || 64;
  }

  /** What the time means, and whether it is one. */
  function followTime() {
    const target = field("time");
    const seconds = target.value.trim() ? window.gipfelDuration.seconds(target.value) : null;
    const bad = seconds !== null && !(seconds > 0);
    target.setCustomValidity(bad ? "Write it as 30 (minutes), 2h, 90 min, 2:00:00 or 1-12:00:00." : "");
    if (bad) {
      target.classList.add("is-invalid");
      target.setAttribute("aria-invalid", "true");
    }
    byId("gipfel-time-words").textContent = bad
      ? "✗ not a valid time:"
      : seconds === null
        ? ""
        : `= ${window.gipfelDuration.words(seconds)}.`;
    byId("gipfel-time-words").classList.toggle("text-danger-emphasis", bad);
  }

  /** What follows a vetting is asked where there is one; of one node none can be left out. */
  function followVetting() {
    const action = field("vet_action");
    if (!action) {
      return;
    }
    action.disabled = !field("vet").value;
    const shrink = action.querySelector("[value=shrink]");
    shrink.disabled = Number(field("nodes").value) < 2;
    if (shrink.disabled && shrink.selected) {
      action.value = "abort";
    }
  }

  // Of several clusters, each one's partitions, accounts and the like stand in groups of its own.
  const groups = new Map();
  root.querySelectorAll("optgroup[data-cluster]").forEach((each) => {
    const select = each.parentElement;
    groups.set(select, [...(groups.get(select) || []), each]);
  });

  /** Offer what the chosen cluster has, and nothing of the others; another cluster has its own usual partition. */
  function followCluster(changed) {
    for (const [select, all] of groups) {
      const before = changed && select === field("partition") ? "" : select.value;
      all.forEach((each) => each.remove());
      select.append(...all.filter((each) => each.dataset.cluster === field("cluster").value));
      select.value = before;
      if (select.selectedIndex === -1) {
        const usual = [...select.options].findIndex((each) => each.dataset.default);
        select.selectedIndex = Math.max(usual, 0);
      }
    }
  }

  const presets = [...root.querySelectorAll(".gipfel-preset")];

  function choose(preset) {
    const values = JSON.parse(preset.dataset.values);
    if (groups.size) {
      field("cluster").value = values.cluster;
      followCluster(true);
    }
    for (const [name, value] of Object.entries(values)) {
      const target = field(name);
      if (!target) {
        continue;
      }
      target.value = value;
      if (target.selectedIndex === -1) {
        const usual = [...target.options].findIndex((each) => each.defaultSelected || each.dataset.default);
        target.selectedIndex = Math.max(usual, 0);
      }
    }
    presets.forEach((each) => each.setAttribute("aria-pressed", String(each === preset)));
    followTime();
    followPartition();
    followVetting();
    askStart();
    askEnvironment();
    // From here on it takes Enter, or a second click.
    startButton.focus();
  }

  presets.forEach((each) => each.addEventListener("click", () => choose(each)));
  form.addEventListener("input", (event) => {
    if (!event.target.name) {
      return;
    }
    presets.forEach((each) => each.setAttribute("aria-pressed", "false"));
    event.target.classList.remove("is-invalid");
    event.target.removeAttribute("aria-invalid");
    if (event.target.name === "cluster") {
      followCluster(true);
    }
    if (["cluster", "partition"].includes(event.target.name)) {
      followPartition();
    }
    if (event.target.name === "time") {
      followTime();
    }
    if (["vet", "nodes"].includes(event.target.name)) {
      followVetting();
    }
    if (["edf", "edf_path"].includes(event.target.name)) {
      askEnvironment();
    } else {
      askStart();
    }
  });

  window.gipfelForm = { ask, showCheck, element, field, askEnvironment };
  startLine.hidden = false;
  if (groups.size) {
    followCluster(false);
  }
  followTime();
  followPartition();
  followVetting();
  askStart();
  askEnvironment();
})();
