"""The browser half of a vetting run in a cell, in Chromium with a fake kernel."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect, sync_playwright
from test_hub_pages import AXE, serious_findings

from gipfel_extension.vetting.grid import make_grid
from gipfel_extension.vetting.model import CheckResult, Scope, Verdict
from gipfel_extension.vetting.protocol import ProtocolCheck, VettingProtocol
from gipfel_extension.vetting.report import make_report
from gipfel_widgets import Vetting

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium on this machine"),
]

_PAGE = """
<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="vetting.css">
<style>
  body { background: var(--jp-layout-color1); }
  :root { --jp-layout-color1: #fff; --jp-ui-font-color1: #222; }
  .dark { --jp-layout-color1: #111; --jp-ui-font-color1: #eee; --jp-error-color1: #e57373; }
</style>
<div id="cell" style="width:420px"></div>
<script type="module">
  import view from './vetting.js';
  const listeners = {};
  const state = await (await fetch('state.json')).json();
  globalThis.change = (name, value) => {
    state[name] = value;
    (listeners[`change:${name}`] ?? []).forEach(each => each());
  };
  const model = {
    get: name => state[name],
    on: (name, listener) => (listeners[name] ??= []).push(listener),
    off: (name, listener) => { listeners[name] = (listeners[name] ?? []).filter(each => each !== listener); }
  };
  globalThis.listening = () => Object.values(listeners).flat().length;
  globalThis.leave = view.render({ model, el: document.querySelector('#cell') });
</script>
"""


def grid(*, ended: bool) -> dict[str, Any]:
    """Three nodes and three checks; one is bad, and nothing in a name becomes a part of the page."""
    protocol = VettingProtocol(
        name="quick",
        checks=tuple(ProtocolCheck(name=name, type="dns") for name in ("<b>DNS", "GPUs", "matmul")),
    )
    nodes = ("nid1", "nid2", "nid3")
    results = [
        CheckResult(
            check=check.name, type="dns", scope=Scope.NODE, subject=node, node=node, reason=f"So is {node}.",
            verdict=Verdict.FAIL if (node, check.name) == ("nid3", "GPUs") else Verdict.PASS, fix="Leave it.",
        )
        for node in nodes
        for check in protocol.checks[: 3 if ended else 2]
    ]  # fmt: skip
    report = make_report(
        protocol, nodes, results, started_ns=10**18, ended_ns=10**18 + 9 * 10**9 if ended else None,
        complete=ended, running={} if ended else dict.fromkeys(nodes, "matmul"),
    )  # fmt: skip
    return make_grid(report).model_dump()


@pytest.fixture
def page() -> Iterator[Page]:
    files = {
        "/": (_PAGE, "text/html"),
        "/vetting.js": (str(Vetting._esm), "text/javascript"),
        "/vetting.css": (str(Vetting._css), "text/css"),
        "/state.json": (
            json.dumps({"grid": {}, "message": "Starting the vetting…"}),
            "application/json",
        ),
    }

    def answer(route: Route) -> None:
        name = route.request.url.partition("vetting.test")[2]
        body, kind = files.get(name, ("", "text/plain"))
        route.fulfill(body=body, content_type=kind, status=200 if name in files else 404)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 480, "height": 420})
        page.route("**/*", answer)
        page.goto("http://vetting.test/")
        yield page
        browser.close()


def test_the_grid_grows_says_why_and_keeps_the_focus(page: Page) -> None:
    cell = page.locator("#cell")
    expect(cell.get_by_role("status").first).to_have_text("Starting the vetting…")
    page.evaluate("grid => change('grid', grid)", grid(ended=False))
    expect(cell.get_by_role("status").first).to_contain_text("◐ Vetting: 0 of 3 nodes done (quick)")
    assert cell.locator("td[data-verdict=running]").count() == 3
    assert cell.locator("td[tabindex='0']").count() == 1
    cell.locator("td[data-place='0-0']").focus()
    page.keyboard.press("ArrowRight")
    reason = cell.locator(".jp-Gipfel-vetting-reason")
    expect(reason).to_have_text("✗ nid3 · GPUs: fail. So is nid3.")
    # The report is updated; the selected cell stays.
    page.evaluate("grid => change('grid', grid)", grid(ended=True))
    expect(cell.get_by_role("status").first).to_contain_text(
        re.compile(r"✗ Vetting: 2 of 3 nodes vetted .+ \(quick, 9 s\)")
    )
    assert page.evaluate("document.activeElement.dataset.place") == "0-1"
    expect(reason).to_contain_text("nid3 · GPUs: fail.")
    cell.locator("td[data-place='1-2']").hover()
    expect(reason).to_have_text("✓ nid1 · matmul: pass. So is nid1.")
    expect(cell.locator("li")).to_have_text("✗ nid3 · GPUs: fail. So is nid3. Leave it.")
    expect(cell.locator("code")).to_have_text("--exclude=nid3")
    assert cell.locator("b").count() == 0
    ground = "getComputedStyle(document.querySelector('.jp-Gipfel-vetting')).color"
    light = page.evaluate(ground)
    assert not AXE.is_file() or serious_findings(page, "#cell") == []
    page.evaluate("document.documentElement.classList.add('dark')")
    assert page.evaluate(ground) != light
    assert not AXE.is_file() or serious_findings(page, "#cell") == []
    page.evaluate("leave()")
    assert page.evaluate("listening()") == 0
