// Section for a new environment, from a file, pasted text or fields; the hub checks and saves it as the user.
"use strict";
(() => {
  const shared = window.gipfelForm;
  const { element, show } = window.gipfelEdfCheck;
  const byId = (id) => document.getElementById(`gipfel-new-${id}`);
  const text = shared && byId("text");
  if (!text) {
    return;
  }
  const MAX_BYTES = 64 * 1024;
  const state = byId("state");
  const replace = byId("replace");

  function report(message, isProblem) {
    state.replaceChildren(element("span", message, isProblem ? "text-danger-emphasis" : ""));
  }

  /** Mark this field alone as invalid; null for none. */
  function markInvalid(target) {
    for (const each of document.querySelectorAll("#gipfel-new [aria-invalid]")) {
      each.classList.remove("is-invalid");
      each.removeAttribute("aria-invalid");
    }
    if (target) {
      target.classList.add("is-invalid");
      target.setAttribute("aria-invalid", "true");
      target.focus();
    }
  }

  /** Return the values of the fields that are filled in, in the types of the schema. */
  function values() {
    const found = {};
    for (const each of document.querySelectorAll("#gipfel-new [data-key]")) {
      const { key, kind } = each.dataset;
      const lines = each.value.split("\n").map((line) => line.trim()).filter(Boolean);
      if (kind === "boolean") {
        if (each.checked !== (each.dataset.default === "true")) {
          found[key] = each.checked;
        }
      } else if (kind === "text" && each.value.trim()) {
        found[key] = each.value.trim();
      } else if (kind === "list" && lines.length) {
        found[key] = lines;
      } else if (kind === "table" && lines.length) {
        found[key] = Object.fromEntries(
          lines.map((line) => {
            const at = line.indexOf("=");
            return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
          }),
        );
      }
    }
    return found;
  }

  /** Send a draft to the hub, show the result, and return it; null if the request failed. */
  async function send(draft) {
    replace.hidden = true;
    markInvalid(null);
    report("Checking…");
    let answer;
    try {
      answer = await shared.ask("draft", { name: byId("name").value.trim() || "new", ...draft });
    } catch (error) {
      report(`✗ ${error.message}`, true);
      return null;
    }
    if (answer.diagnostics) {
      show(state, answer);
      if (!answer.valid) {
        markInvalid(text);
      }
    } else {
      state.replaceChildren();
    }
    if (answer.problem) {
      state.prepend(element("div", `✗ ${answer.problem}`, "text-danger-emphasis"));
      markInvalid(answer.key ? byId(answer.key) : answer.exists ? byId("name") : text);
    }
    replace.hidden = !answer.exists;
    return answer;
  }

  /** Select the saved environment in the form above. */
  function use(name) {
    const edf = shared.field("edf");
    const path = shared.field("edf_path");
    if (name.startsWith("~")) {
      path.value = name;
    } else {
      if (![...edf.options].some((each) => each.value === name)) {
        edf.add(new Option(name, name));
      }
      edf.value = name;
      path.value = "";
    }
    shared.updateSummary();
    shared.checkEnvironment();
  }

  async function save(overwrite) {
    if (!byId("name").value.trim() || !byId("name").checkValidity()) {
      report("✗ Enter a name of letters, digits, dots, dashes and underscores.", true);
      markInvalid(byId("name"));
      return;
    }
    const answer = await send({ toml: text.value, save: true, replace: overwrite });
    if (answer && answer.saved) {
      state.prepend(element("div", `✓ Saved as ${answer.saved} and selected in the form.`));
      use(answer.name);
    }
  }

  const dialog = document.getElementById("gipfel-new");
  byId("open").addEventListener("click", () => dialog.showModal());
  byId("close").addEventListener("click", () => dialog.close());
  byId("file").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    if (!file) {
      return;
    }
    if (file.size > MAX_BYTES) {
      report("✗ The file is larger than 64 KiB. Choose an EDF, which is a short text file.", true);
      return;
    }
    text.value = await file.text();
    byId("name").value = byId("name").value || file.name.replace(/\.toml$/, "");
    await send({ toml: text.value });
  });
  byId("write").addEventListener("click", async () => {
    const answer = await send({ values: values() });
    if (answer && answer.toml !== undefined) {
      text.value = answer.toml;
    }
  });
  byId("check").addEventListener("click", () => send({ toml: text.value }));
  byId("save").addEventListener("click", () => save(false));
  replace.addEventListener("click", () => save(true));
})();
