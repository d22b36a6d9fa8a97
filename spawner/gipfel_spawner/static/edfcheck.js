// The result of an EDF's check in the spawn form: errors and warnings with their fixes, and the resolved environment.
"use strict";
(() => {
  /** Return a new element with a plain text. */
  function element(tag, text, className) {
    const made = document.createElement(tag);
    made.textContent = text || "";
    made.className = className || "";
    return made;
  }

  /** Return errors and warnings; the form does not show notes, such as that an EDF has no image. */
  function withoutNotes(diagnostics) {
    return diagnostics.filter((each) => each.severity !== "note");
  }

  /** Return the diagnostics of an EDF, with their fixes, as a list element. */
  function diagnosticList(diagnostics) {
    const list = element("ul", "", "gipfel-diagnostics small");
    for (const each of withoutNotes(diagnostics)) {
      const label = each.severity === "error" ? "✗ Error" : "⚠ Note";
      const location = [each.line ? `line ${each.line}` : "", each.key].filter(Boolean).join(", ");
      const item = element("li", "");
      item.append(element("strong", `${label}${location ? ` (${location})` : ""}: `));
      item.append(`${each.message} ${each.fix}`.trim());
      list.append(item);
    }
    return list;
  }

  /** Return the number of errors of a check. */
  function errorCount(answer) {
    return answer.diagnostics.filter((each) => each.severity === "error").length;
  }

  /** Return the numbers of errors and notes as a line; empty for a single error, which is listed below it. */
  function summary(answer) {
    const errors = errorCount(answer);
    const notes = withoutNotes(answer.diagnostics).length - errors;
    const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
    if (errors === 1 && !notes) {
      return "";
    }
    const parts = [errors ? `✗ ${count(errors, "error")}` : "✓ valid"];
    if (notes) {
      parts.push(`⚠ ${count(notes, "note")}`);
    }
    return parts.join(" · ");
  }

  /** Return the resolved EDF in a collapsed element. */
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

  /** Show the result of an EDF's check in an element of the page. */
  function show(container, answer) {
    const box = element("div", "", errorCount(answer) ? "alert alert-danger mt-2 mb-0 px-3 py-2" : "");
    box.append(element("span", summary(answer)));
    if (answer.diagnostics.length) {
      box.append(diagnosticList(answer.diagnostics));
    }
    container.replaceChildren(box);
    if (answer.edf) {
      container.append(resolved(answer.edf));
    }
  }

  window.gipfelEdfCheck = { element, errorCount, show };
})();
