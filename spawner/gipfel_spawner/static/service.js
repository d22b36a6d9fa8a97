// The form's choice between a notebook and a service: shows the parameters of the chosen service alone.
"use strict";
(() => {
  const root = document.getElementById("gipfel-form");
  const form = root && root.closest("form");
  const choice = document.getElementById("gipfel-service");
  if (!form || !choice) {
    return;
  }
  const fieldsets = [...root.querySelectorAll("fieldset[data-service]")];

  /** Show and enable the parameters of the chosen service; the others are not submitted. */
  function update() {
    for (const each of fieldsets) {
      const isChosen = each.dataset.service === choice.value;
      each.hidden = !isChosen;
      each.disabled = !isChosen;
      each.querySelectorAll("[data-required]").forEach((input) => {
        input.required = isChosen;
      });
    }
    const pages = form.elements.namedItem("interface");
    if (pages) {
      pages.disabled = choice.value !== "";
    }
  }

  /** Fill in the resources and the environment of the chosen service. */
  function fillIn() {
    const option = choice.selectedOptions[0];
    if (!option || !option.dataset.resources) {
      return;
    }
    const resources = JSON.parse(option.dataset.resources);
    for (const name of ["gpus", "cpus", "memory", "time", "partition"]) {
      const field = form.elements.namedItem(name);
      const value = String(resources[name] || (name === "gpus" ? "0" : ""));
      if (field && (value || ["cpus", "memory"].includes(name))) {
        const before = field.value;
        field.value = value;
        if (field.selectedIndex === -1) {
          field.value = before;
        }
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }
    }
    const environment = form.elements.namedItem("edf");
    if (environment && [...environment.options].some((each) => each.value === option.dataset.edf)) {
      environment.value = option.dataset.edf;
      environment.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  choice.addEventListener("change", () => {
    update();
    fillIn();
  });
  window.gipfelService = { update };
  update();
})();
