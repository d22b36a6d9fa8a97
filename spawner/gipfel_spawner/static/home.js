// The hub's home: buttons of the session cards, and a refresh of what the page shows.
"use strict";
(() => {
  const root = document.getElementById("gipfel-home");
  if (!root) {
    return;
  }
  const REFRESH_MS = 15000;
  const SOON_MS = 1000;
  const REFRESHED = ["gipfel-usage", "gipfel-cards", "gipfel-shared", "gipfel-earlier", "gipfel-free"];
  const { hub, user } = root.dataset;
  const byId = (id) => document.getElementById(id);
  const api = `${hub}api/`;
  const userPath = encodeURIComponent(user);

  function report(message) {
    byId("gipfel-problem").textContent = message;
    byId("gipfel-problem").hidden = !message;
  }

  /** Send a request as the user of this page, and return the answer; throw the hub's message. */
  async function send(method, path, content) {
    const answer = await fetch(api + path, {
      method,
      headers: { "Content-Type": "application/json", "X-XSRFToken": window.jhdata.xsrf_token },
      body: content === undefined ? undefined : JSON.stringify(content),
    });
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok || body.problem) {
      throw new Error(body.problem || body.message || `The hub answered with HTTP status ${answer.status}.`);
    }
    return body;
  }

  /** True while nobody sees the page, or a stop confirmation is open. */
  function isBusy() {
    return document.hidden || root.querySelector("details[open]") !== null;
  }

  /** Return a text that identifies a link or button of a card or row, also after a refresh of the page. */
  function identity(target) {
    const card = target.closest("[data-server]");
    return JSON.stringify([card && card.dataset.server, target.getAttribute("href"), target.textContent.trim()]);
  }

  /** Replace the parts of the page by those of a new one; the keyboard's focus stays where it was. */
  function replaceParts(page) {
    const focused = document.activeElement.closest("#gipfel-cards *, #gipfel-earlier *");
    const wanted = focused && identity(focused);
    for (const id of REFRESHED) {
      byId(id).replaceWith(document.adoptNode(page.getElementById(id)));
    }
    if (wanted) {
      const same = [...root.querySelectorAll("a, button, summary")].find((each) => identity(each) === wanted);
      if (same) {
        same.focus();
      }
    }
  }

  async function refresh(force) {
    if (!force && isBusy()) {
      return;
    }
    const answer = await fetch(window.location.href).catch(() => null);
    if (!answer || !answer.ok) {
      report("The hub does not answer. This page shows its last state; it tries again.");
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!page.getElementById("gipfel-home")) {
      window.location.reload();
      return;
    }
    if (!force && isBusy()) {
      return;
    }
    if (byId("gipfel-problem").textContent.startsWith("The hub does not answer")) {
      report("");
    }
    replaceParts(page);
  }

  const serverPath = (name) => (name ? `users/${userPath}/servers/${encodeURIComponent(name)}` : `users/${userPath}/server`);
  const share = (content) => send("POST", `gipfel/users/${userPath}/share`, content);
  const ACTIONS = {
    share: (service, button) => {
      const [kind, name, seconds] = ["kind", "name", "seconds"].map(
        (each) => button.parentElement.querySelector(`[name=${each}]`).value.trim()
      );
      if (!name) {
        throw new Error("Give the name of a user or group.");
      }
      return share({ service, kind, name, seconds: Number(seconds) });
    },
    unshare: (service, { dataset }) => share({ service, kind: dataset.kind, name: dataset.name, seconds: 0 }),
    start: (name) => send("POST", serverPath(name), {}),
    stop: (name) => send("DELETE", serverPath(name)),
    delete: (name) => send("DELETE", serverPath(name), { remove: true }),
    extend: (name) => send("POST", `gipfel/users/${userPath}/extend`, { server: name }),
  };

  async function showLog(name, title) {
    const text = byId("gipfel-log-text");
    byId("gipfel-log-title").textContent = `Log of ${title}`;
    text.textContent = "Reading the log…";
    byId("gipfel-log").showModal();
    try {
      const answer = await send("POST", `gipfel/users/${userPath}/log`, { server: name });
      text.textContent = answer.text || "The log is empty.";
      text.scrollTop = text.scrollHeight;
    } catch (error) {
      text.textContent = error.message;
    }
  }

  root.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-action]");
    const card = button && button.closest("[data-server]");
    if (!card) {
      return;
    }
    const name = card.dataset.server;
    if (button.dataset.action === "log") {
      await showLog(name, card.getAttribute("aria-label").replace("Session ", ""));
      return;
    }
    report("");
    button.disabled = true;
    try {
      await ACTIONS[button.dataset.action](name, button);
    } catch (error) {
      report(error.message);
    }
    await refresh(true);
    window.setTimeout(refresh, SOON_MS);
  });

  byId("gipfel-new-session").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = byId("gipfel-session-name");
    const form = event.target.dataset.spawn;
    window.require(["utils"], (utils) => {
      const title = field ? utils.sanitise_display_name(field.value) : "";
      if (!title) {
        window.location.href = form;
        return;
      }
      const name = utils.safe_slug(title);
      send("PUT", serverPath(name), { display_name: title })
        .then(() => { window.location.href = `${form}/${name}`; })
        .catch((error) => report(error.message));
    });
  });

  window.setInterval(refresh, REFRESH_MS);
})();
