// Interactive parts of the spawn form: presets, limits of a partition, expected start, the check of an EDF.
// The form also works without this script.
"use strict";
(() => {
  const root = document.getElementById("gipfel-form");
  const form = root && root.closest("form");
  if (!form) {
    return;
  }
  const { element, errorCount, show: showCheck } = window.gipfelEdfCheck;
  const NUMBERS = ["gpus", "nodes", "cpus"];
  const PAUSE_MS = 600;
  const field = (name) => form.elements.namedItem(name);
  const byId = (id) => document.getElementById(id);

  /** Post a request to the hub as the user of this page, and return the answer; throw the hub's message. */
  async function ask(route, content, signal) {
    const answer = await fetch(`${root.dataset.api}/${route}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-XSRFToken": window.jhdata.xsrf_token },
      body: JSON.stringify(content),
      signal,
    });
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) {
      throw new Error(body.message || `The hub answered with HTTP status ${answer.status}.`);
    }
    return body;
  }

  /** Return a function that runs the task after a pause without further calls; a new call aborts the task. */
  function debounced(task) {
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

  /** Return the form's current options. */
  function options() {
    const chosen = {};
    for (const each of form.elements) {
      if (each.name && each.value !== "" && !each.disabled && !each.name.startsWith("parameter.")) {
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

  /** Return when the job starts: how long earlier jobs waited, and the latest time, in the browser's zone if possible. */
  function startText(answer) {
    if (!answer.start) {
      return answer.text;
    }
    const time = window.gipfelTime ? window.gipfelTime.format(new Date(answer.start), "near") : answer.text;
    const latest = `at the latest ${time}, if all jobs use all their time`;
    return answer.bound ? `of your jobs like this, ${answer.bound} · ${latest}` : latest;
  }

  /** Show the waits of earlier jobs, if the scheduler knows any. */
  function showWaits(rows) {
    const table = byId("gipfel-waits");
    if (!table) {
      return;
    }
    table.hidden = !rows;
    table.querySelector("tbody").replaceChildren(
      ...(rows || []).map((row) => {
        const line = document.createElement("tr");
        line.append(...row.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
        return line;
      }),
    );
  }

  /** Mark numbers beyond their limits; returns what to do about the first field that can't be submitted. */
  function firstMistake() {
    for (const each of form.querySelectorAll("input[type=number]:not([aria-errormessage])")) {
      each.classList.toggle("is-invalid", !each.validity.valid);
      each.toggleAttribute("aria-invalid", !each.validity.valid);
      if (!each.validity.valid) {
        each.setAttribute("aria-invalid", "true");
      }
    }
    const wrong = [...form.elements].find((each) => each.willValidate && !each.validity.valid);
    const name = wrong && wrong.labels.length ? wrong.labels[0].textContent.replace("(required)", "").trim() : "";
    return wrong && `${wrong.validity.valueMissing ? "fill in" : "fix"} “${name}” above`;
  }

  const updateExpectedStart = debounced(async (signal) => {
    const mistake = firstMistake();
    if (mistake) {
      start.textContent = `unknown (${mistake})`;
      return;
    }
    start.textContent = "querying the scheduler…";
    try {
      const answer = await ask("expected-start", options(), signal);
      start.textContent = answer.problem || startText(answer);
      start.className = answer.problem ? "text-danger-emphasis" : "";
      if (!answer.problem) {
        showWaits(answer.waits);
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        start.textContent = `unknown. ${error.message}`;
      }
    }
  });

  /** Return a select's value, or without one what a job gets that names none; empty if that is unknown. */
  function usedValue(select) {
    const source = select && select.querySelector("[data-used]");
    return select ? select.value || (source ? source.dataset.used : "") : "";
  }

  /** Return what Start would start, such as `torch · 2 × 4 GPUs on normal · 2 h · 16 GPU hours`. */
  function summaryText() {
    const [gpus, nodes] = [Number(field("gpus").value), Number(field("nodes").value) || 1];
    const seconds = field("time").value.trim() ? window.gipfelDuration.seconds(field("time").value) : NaN;
    const path = field("edf_path").value.trim();
    const edf = path ? path.split("/").pop() : field("edf").value || field("edf").options[0].textContent;
    const partition = field("partition").value;
    const count = gpus ? `${gpus} GPU${gpus === 1 ? "" : "s"}` : "no GPU";
    const service = field("service") ? field("service").selectedOptions[0] : null;
    const parts = [
      ...(service && service.value ? [service.textContent] : []),
      edf.trim().replace("None (no container)", "no container"),
      `${nodes > 1 ? `${nodes} nodes × ` : ""}${count}${partition ? ` on ${partition}` : ""}`,
    ];
    if (seconds > 0) {
      parts.push(window.gipfelDuration.format(seconds));
    }
    if (gpus && seconds > 0 && seconds !== Infinity) {
      const hours = Number(((gpus * nodes * seconds) / 3600).toFixed(1));
      parts.push(`up to ${hours} GPU hour${hours === 1 ? "" : "s"}`);
    }
    for (const [name, label] of [["account", "account"], ["qos", "QoS"], ["reservation", "reservation"]]) {
      const used = usedValue(field(name));
      if (used) {
        parts.push(`${label} ${used}`);
      }
    }
    return parts.join(" · ");
  }

  /** Update the line above Start, and mark the chosen partition in the table. */
  function updateSummary() {
    byId("gipfel-summary").textContent = summaryText();
    // Hidden where every partition has one node; a preset may ask for more, which the user must see.
    const nodesField = field("nodes").closest(".gipfel-field");
    nodesField.hidden = nodesField.hidden && field("nodes").value === "1";
    const cluster = field("cluster") ? field("cluster").value : "";
    for (const row of root.querySelectorAll("#gipfel-partitions [data-partition]")) {
      row.hidden = row.dataset.cluster !== cluster;
      row.toggleAttribute("aria-current", row.dataset.partition === field("partition").value);
      if (row.hasAttribute("aria-current")) {
        row.setAttribute("aria-current", "true");
      }
    }
  }

  const state = byId("gipfel-edf-state");
  const startButton = form.querySelector("[type=submit]");

  /** Return the field that names the environment, and move the check's result below it. */
  function environmentField() {
    const used = field("edf_path").value.trim() ? field("edf_path") : field("edf");
    byId(`${used.id}-help`).after(state);
    return used;
  }

  /** Mark the environment's field as valid or invalid, and de-emphasize the Start button if it is invalid. */
  function markEnvironment(target, isInvalid) {
    for (const each of [field("edf"), field("edf_path")]) {
      const marked = isInvalid && each === target;
      each.classList.toggle("is-invalid", marked);
      each.toggleAttribute("aria-invalid", marked);
      if (marked) {
        each.setAttribute("aria-invalid", "true");
        each.setAttribute("aria-errormessage", state.id);
      } else {
        each.removeAttribute("aria-errormessage");
      }
    }
    startButton.classList.toggle("btn-jupyter", !isInvalid);
    startButton.classList.toggle("btn-secondary", isInvalid);
  }

  const checkEnvironment = debounced(async (signal) => {
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
      markEnvironment(target, errorCount(answer) > 0);
      if (answer.edf && answer.edf.image && !errorCount(answer)) {
        const verdict = await window.gipfelSecurity.show(state, cluster ? { edf, cluster } : { edf }, ask, signal);
        markEnvironment(target, verdict.level === "fail");
      }
      // Remove the error of the last submission, which the result repeats.
      root.querySelectorAll("#gipfel-edf-error").forEach((each) => each.remove());
    } catch (error) {
      if (error.name !== "AbortError") {
        state.replaceChildren(element("div", `✗ ${error.message}`, "alert alert-danger mt-2 mb-0 px-3 py-2"));
        markEnvironment(target, true);
      }
    }
  });

  /** Apply the limits of the selected partition, and show its idle GPUs. */
  function updatePartition() {
    const chosen = field("partition").selectedOptions && field("partition").selectedOptions[0];
    if (!chosen) {
      return;
    }
    const { idle, nodes, gpus, cpus } = chosen.dataset;
    byId("gipfel-idle").textContent = idle ? `${chosen.value}: ${idle}` : "";
    field("nodes").max = Number(nodes) || 4096;
    field("cpus").max = Number(cpus) || 4096;
    // If the number of GPUs is unknown, the scheduler checks it.
    field("gpus").max = chosen.dataset.gpusKnown ? Number(gpus) : Number(gpus) || 64;
  }

  /** Validate the time, and show it with units. */
  function updateTime() {
    const target = field("time");
    const seconds = target.value.trim() ? window.gipfelDuration.seconds(target.value) : null;
    const isInvalid = seconds !== null && !(seconds > 0);
    target.setCustomValidity(isInvalid ? "Write it as 30 (minutes), 2h, 90 min, 2:00:00 or 1-12:00:00." : "");
    if (isInvalid) {
      target.classList.add("is-invalid");
      target.setAttribute("aria-invalid", "true");
    }
    byId("gipfel-time-words").textContent = isInvalid
      ? "✗ not a valid time:"
      : seconds === null
        ? ""
        : `= ${window.gipfelDuration.format(seconds)}.`;
    byId("gipfel-time-words").classList.toggle("text-danger-emphasis", isInvalid);
  }

  /** Show the action after a vetting only with a vetting, and "shrink" only with several nodes. */
  function updateVetting() {
    const action = field("vet_action");
    if (!action) {
      return;
    }
    byId("gipfel-vet-more").hidden = !field("vet").value && !byId("gipfel-vet_action-error");
    action.disabled = !field("vet").value;
    const shrink = action.querySelector("[value=shrink]");
    shrink.disabled = Number(field("nodes").value) < 2;
    if (shrink.disabled && shrink.selected) {
      action.value = "abort";
    }
  }

  // With several clusters, each select has a group of options per cluster.
  const groups = new Map();
  root.querySelectorAll("optgroup[data-cluster]").forEach((each) => {
    const select = each.parentElement;
    groups.set(select, [...(groups.get(select) || []), each]);
  });

  /** Show the selected cluster's groups only; after a change, select its default partition. */
  function updateCluster(changed) {
    for (const [select, all] of groups) {
      const before = changed && select === field("partition") ? "" : select.value;
      all.forEach((each) => each.remove());
      select.append(...all.filter((each) => each.dataset.cluster === field("cluster").value));
      select.value = before;
      if (select.selectedIndex === -1) {
        const preselected = [...select.options].findIndex((each) => each.dataset.default);
        select.selectedIndex = Math.max(preselected, 0);
      }
    }
  }

  const presets = [...root.querySelectorAll(".gipfel-preset")];

  function applyPreset(preset) {
    const values = JSON.parse(preset.dataset.values);
    if (groups.size) {
      field("cluster").value = values.cluster;
      updateCluster(true);
    }
    for (const [name, value] of Object.entries(values)) {
      const target = field(name);
      if (!target) {
        continue;
      }
      target.value = value;
      if (target.selectedIndex === -1) {
        const preselected = [...target.options].findIndex((each) => each.defaultSelected || each.dataset.default);
        target.selectedIndex = Math.max(preselected, 0);
      }
    }
    presets.forEach((each) => each.setAttribute("aria-pressed", String(each === preset)));
    if (window.gipfelService) {
      window.gipfelService.update();
    }
    updateTime();
    updatePartition();
    updateVetting();
    updateSummary();
    updateExpectedStart();
    checkEnvironment();
    // With the focus on the button, Enter starts the server.
    startButton.focus();
  }

  presets.forEach((each) => each.addEventListener("click", () => applyPreset(each)));
  form.addEventListener("input", (event) => {
    if (!event.target.name) {
      return;
    }
    presets.forEach((each) => each.setAttribute("aria-pressed", "false"));
    event.target.classList.remove("is-invalid");
    event.target.removeAttribute("aria-invalid");
    if (event.target.name === "cluster") {
      updateCluster(true);
    }
    if (["cluster", "partition"].includes(event.target.name)) {
      updatePartition();
    }
    if (event.target.name === "time") {
      updateTime();
    }
    if (["vet", "nodes"].includes(event.target.name)) {
      updateVetting();
    }
    updateSummary();
    if (["edf", "edf_path"].includes(event.target.name)) {
      checkEnvironment();
    } else {
      updateExpectedStart();
    }
  });

  window.gipfelForm = { ask, field, checkEnvironment, updateSummary };
  startLine.hidden = false;
  if (groups.size) {
    updateCluster(false);
  }
  updateTime();
  updatePartition();
  updateVetting();
  updateSummary();
  updateExpectedStart();
  checkEnvironment();
})();
