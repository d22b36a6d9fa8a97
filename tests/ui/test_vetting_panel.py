"""The panel's vetting in a browser: a real run, a changed protocol, a large allocation."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from lab_page import LabPage
from lab_server import LabServer
from playwright.sync_api import Locator, Page, expect

from gipfel_extension.vetting.model import CheckResult, Scope, Verdict
from gipfel_extension.vetting.protocol import ProtocolCheck, VettingProtocol
from gipfel_extension.vetting.report import make_report

pytestmark = pytest.mark.browser

_LIMIT_MS = 180_000
_STRICT = """\
name: strict
checks:
- {name: variable, type: environment, parameters: {expected: {NOT_SET_HERE: "1"}}}
- {name: memory, type: host_memory, parameters: {min_available: 1 %}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LabServer]:
    with LabServer("host") as found:
        yield found


@pytest.fixture(scope="module")
def lab(server: LabServer, new_page: Callable[[], Page]) -> Iterator[LabPage]:
    """A lab without a job, the panel open, in a window as narrow as the panel may get."""
    page = new_page()
    lab = LabPage(page)
    page.goto(server.url)
    lab.wait_until_ready()
    lab.open_panel()
    lab.open_section("Vetting")
    yield lab
    page.close()


@pytest.fixture
def vetting(lab: LabPage) -> Locator:
    return lab.panel.locator("[data-section='vetting']")


def state(vetting: Locator) -> Locator:
    return vetting.locator(".jp-Gipfel-summary [role=status]")


def minute(page: Page, asked: list[str]) -> Counter[str]:
    """Let a minute pass on the page's clock, and count what is requested by route."""
    asked.clear()
    for _ in range(30):
        page.clock.run_for(2000)
        # The answers take real time.
        page.wait_for_timeout(100)
    return Counter(asked)


def test_an_idle_lab_asks_nothing_while_the_server_pushes(
    server: LabServer, new_page: Callable[[], Page]
) -> None:
    page = new_page()
    page.clock.install()
    lab = LabPage(page)
    asked: list[str] = []
    found = re.compile(r"/gipfel/(vetting|launches|batch|lifetime)(?:\?|$)")
    page.on("request", lambda request: asked.extend(found.findall(request.url)))
    page.goto(server.url.replace("/lab?", "/lab/workspaces/idle?reset&"))
    lab.wait_until_ready()
    lab.open_panel()
    expect(lab.open_section("Vetting")).to_contain_text("Not vetted yet")
    assert {"vetting", "lifetime"} <= set(asked)
    assert not minute(page, asked)
    page.close()


def test_a_real_run_is_followed_to_its_report(
    lab: LabPage, vetting: Locator, screenshot: Callable[[Page, str], object]
) -> None:
    expect(vetting).to_contain_text("Not vetted yet")
    vetting.locator("select[name=protocol]").select_option("shipped:cpu")
    expect(vetting).to_contain_text("for jobs without GPUs")
    vetting.get_by_role("button", name="Run", exact=True).click()
    expect(vetting.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(vetting.locator("td[data-verdict=running]")).to_have_count(1, timeout=_LIMIT_MS)
    expect(state(vetting)).to_contain_text("0 of 1 node done (cpu)")
    expect(vetting.locator("td[data-verdict=pass]").first).to_be_visible(timeout=_LIMIT_MS)
    screenshot(lab.page, "30-vetting-running")
    expect(state(vetting)).to_have_text(
        re.compile(r"✓ 1 of 1 node vetted .*\(cpu, \d+ s\)"), timeout=_LIMIT_MS
    )
    assert vetting.locator("td").count() == vetting.locator("thead th").count() - 1 == 8
    # The reason is there for the mouse, and for who has none.
    vetting.locator("td[data-place='0-3']").hover()
    expect(vetting.locator(".jp-Gipfel-vetting-reason")).to_contain_text("DNS: pass.")
    vetting.locator("td[data-place='0-0']").focus()
    lab.page.keyboard.press("ArrowRight")
    lab.page.mouse.move(5, 5)
    expect(vetting.locator(".jp-Gipfel-vetting-reason")).to_contain_text("host memory: pass")
    assert vetting.locator("td[tabindex='0']").count() == 1
    # What needs another node or a GPU has not passed: it does not apply.
    reason = vetting.locator(".jp-Gipfel-vetting-reason")
    reasons = []
    for cell in vetting.locator("tbody td").all():
        cell.focus()
        is_tested = cell.get_attribute("data-verdict") != "not_applicable"
        expect(cell).to_have_text("✓" if is_tested else "n/a")
        expect(reason).to_contain_text(": pass" if is_tested else ": not applicable.")
        reasons.append(reason.inner_text())
    alone = [each for each in reasons if "The job has one node" in each]
    assert alone
    assert all("not applicable" in each for each in alone)
    (cpus,) = [each for each in reasons if "may be used" in each]
    assert re.search(r"\d CPUs? may be used\.", cpus), cpus
    for theme in ("Dark", "Light"):
        lab.choose_theme(f"JupyterLab {theme}")
        vetting.locator("td[data-verdict=not_applicable]").first.focus()
        expect(reason).to_contain_text("not applicable.")
        screenshot(lab.page, f"31-vetting-report-{theme.lower()}")


def test_a_protocol_is_changed_kept_beside_the_notebook_and_names_the_faulty_component(
    lab: LabPage, vetting: Locator, server: LabServer, screenshot: Callable[[Page, str], object]
) -> None:
    vetting.get_by_role("button", name="Edit the protocol").click()
    # JupyterLab's own editor, which knows the language and speaks of itself as a field.
    text = vetting.get_by_role("textbox", name="Protocol", exact=True)
    expect(text).to_contain_text("name: cpu")
    expect(text).to_have_attribute("data-language", "yaml")
    expect(text).to_have_attribute("aria-invalid", "false")
    save = vetting.get_by_role("button", name="Save")
    text.fill("name: x\nchecks: 5\n")
    expect(vetting.locator("#jp-Gipfel-vetting-meaning")).to_contain_text("line 2")
    expect(save).to_be_disabled()
    # What is wrong stands below its line.
    expect(text.locator(".jp-Gipfel-vetting-marked")).to_have_text("checks: 5")
    below = text.locator(".jp-Gipfel-vetting-marked + .jp-Gipfel-vetting-message")
    expect(below).to_contain_text("✗ 'checks' is not a list of checks")
    expect(text).to_have_attribute("aria-invalid", "true")
    text.fill(_STRICT.replace("host_memory", "host_memori"))
    # A check that can't be run is not an error in the file: it is reported, and never passes.
    expect(vetting.locator("#jp-Gipfel-vetting-meaning")).to_contain_text("Did you mean")
    expect(text.locator(".jp-Gipfel-vetting-marked")).to_contain_text("host_memori")
    expect(text.locator(".jp-Gipfel-vetting-message")).to_contain_text("▲")
    screenshot(lab.page, "32-vetting-editor")
    text.fill(_STRICT)
    expect(text.locator(".jp-Gipfel-vetting-message")).to_have_count(0)
    # Typed as in any editor, and left as any field: neither Tab nor Escape holds the keyboard.
    text.press("Control+End")
    lab.page.keyboard.type("# kept")
    expect(text).to_contain_text("# kept")
    for _ in "# kept":
        lab.page.keyboard.press("Backspace")
    lab.page.keyboard.press("Escape")
    expect(text).to_be_focused()
    lab.page.keyboard.press("Tab")
    expect(vetting.locator("input[name=protocol-name]")).to_be_focused()
    lab.page.keyboard.press("Shift+Tab")
    expect(text).to_be_focused()
    lab.choose_theme("JupyterLab Dark")
    expect(lab.page.locator("#jupyterlab-splash")).to_have_count(0)
    screenshot(lab.page, "32-vetting-editor-dark")
    lab.choose_theme("JupyterLab Light")
    expect(lab.page.locator("#jupyterlab-splash")).to_have_count(0)
    expect(vetting.locator("#jp-Gipfel-vetting-meaning")).to_contain_text("2 checks: variable, memory")
    expect(vetting.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    vetting.locator("input[name=protocol-name]").fill("strict")
    save.click()
    expect(vetting.locator("select[name=protocol]")).to_have_value("notebook:strict.yaml")
    assert (server.folder / "strict.yaml").read_text() == _STRICT
    vetting.get_by_role("button", name="Run", exact=True).click()
    expect(state(vetting)).to_contain_text("0 of 1 node vetted", timeout=_LIMIT_MS)
    expect(state(vetting)).to_contain_text("✗")
    first = vetting.locator(".jp-Gipfel-vetting-faulty-components li").first
    expect(first).to_contain_text("NOT_SET_HERE is not set")
    # A variable that the user's EDF lacks is not a fault of the node.
    expect(first).to_contain_text("fail (image).")
    expect(vetting.locator("code")).to_have_count(0)
    lab.choose_theme("JupyterLab Dark")
    expect(lab.page.locator("#jupyterlab-splash")).to_have_count(0)
    screenshot(lab.page, "33-vetting-faulty-component-dark")
    lab.choose_theme("JupyterLab Light")


def large(done: int, *, ended: bool) -> object:
    """A report of 1 024 nodes of which `done` have their verdicts; two are bad."""
    protocol = VettingProtocol(
        name="quick", checks=tuple(ProtocolCheck(name=f"check {n}", type="dns") for n in range(12))
    )
    nodes = [f"nid{number:06}" for number in range(1024)]
    bad = {(900, "check 3"), (7, "check 5")}
    results = [
        CheckResult(
            check=check.name, type="dns", scope=Scope.NODE, subject=node, node=node,
            verdict=Verdict.FAIL if (number, check.name) in bad else Verdict.PASS,
            reason=f"{number} is what it is.",
        )
        for number, node in enumerate(nodes[:done])
        for check in protocol.checks
    ]  # fmt: skip
    running = dict.fromkeys(nodes[done:], "check 0")
    began = time.time_ns() - 20 * 10**9
    return make_report(
        protocol, nodes, results, started_ns=began, ended_ns=time.time_ns() if ended else None,
        complete=ended, running={} if ended else running,
    )  # fmt: skip


def test_of_1024_nodes_the_bad_ones_come_first_as_the_report_grows(
    lab: LabPage, vetting: Locator, server: LabServer, screenshot: Callable[[Page, str], object]
) -> None:
    (run,) = (server.folder / "runs").glob("local-*")
    # Of a run that was started elsewhere, such as in a terminal.
    lab.page.reload()
    lab.wait_until_ready()
    if not lab.panel.is_visible():
        lab.open_panel()
    (run / "vetting.json").unlink()
    large(16, ended=False).write(run)  # type: ignore[attr-defined]
    expect(state(vetting)).to_contain_text("16 of 1024 nodes done", timeout=_LIMIT_MS)
    expect(vetting.locator("tbody tr").first).to_have_attribute("data-node", "nid000007")
    large(1024, ended=True).write(run)  # type: ignore[attr-defined]
    expect(state(vetting)).to_contain_text("1022 of 1024 nodes vetted", timeout=_LIMIT_MS)
    rows = vetting.locator("tbody tr")
    expect(rows).to_have_count(40)
    assert [rows.nth(number).get_attribute("data-node") for number in range(2)] == ["nid000007", "nid000900"]
    expect(vetting).to_contain_text("984 more: pass")
    expect(vetting.locator("code")).to_have_text("--exclude=nid[000007,000900]")
    vetting.get_by_role("button", name="Copy").click()
    expect(vetting.get_by_text(re.compile("copied|Ctrl-C"))).to_be_visible()
    screenshot(lab.page, "34-vetting-1024")
    vetting.get_by_role("button", name="Show all nodes").click()
    expect(rows).to_have_count(1024, timeout=_LIMIT_MS)
    vetting.get_by_role("button", name="Show fewer").click()
    expect(rows).to_have_count(40, timeout=_LIMIT_MS)
    assert lab.errors == []
