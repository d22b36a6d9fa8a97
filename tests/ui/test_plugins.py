"""The labextension's plugins in a browser: menu, launcher tile, status bar, and a site that disables one."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import sleep_kind
from lab_page import LabPage
from lab_server import LabServer
from mlflow_stand_in import MlflowStandIn
from playwright.sync_api import Locator, Page, expect
from sleep_kind import SleepKind, install_sleep_kind
from test_hub_pages import serious_findings

from gipfel_cluster.workloads.directory import STOP
from gipfel_extension.data.stage.model import StageSpec
from gipfel_extension.data.stage.transfer import start_staging

pytestmark = pytest.mark.browser

_LIMIT_MS = 120_000
_SOME_BYTES = 100 << 20
Screenshot = Callable[[Page, str], Path]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A lab where another package has installed a kind of workload."""
    site = install_sleep_kind(tmp_path_factory.mktemp("sleeping"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(Path(sleep_kind.__file__).parent))))
        with LabServer("synthetic:training:4") as running:
            yield running


@pytest.fixture(scope="module")
def lab(server: LabServer, new_page: Callable[[], Page]) -> Iterator[LabPage]:
    """One page, whose theme and tab go from test to test."""
    lab = LabPage(new_page())
    lab.page.goto(server.url)
    lab.wait_until_ready()
    yield lab
    assert not lab.errors
    lab.page.close()


def menu_of(lab: LabPage) -> Locator:
    """Open the menu "Gipfel"; returns its items."""
    lab.page.locator(".lm-MenuBar-item", has_text="Gipfel").click()
    items = lab.page.locator(".lm-Menu-item[data-type='command']")
    expect(items.first).to_be_visible()
    return items


def sections_of(lab: LabPage) -> list[str]:
    """Return the IDs of the panel's sections, in the order of their tabs."""
    lab.open_panel()
    expect(lab.panel.get_by_role("tab").first).to_be_visible(timeout=_LIMIT_MS)
    found: list[str] = lab.panel.locator("[data-section]").evaluate_all(
        "all => all.map(each => each.dataset.section)"
    )
    return found


def test_menu_launcher_and_status_bar_lead_to_the_panel(lab: LabPage, screenshot: Screenshot) -> None:
    tile = lab.page.locator(".jp-LauncherCard", has_text="Training Launch")
    expect(tile).to_be_visible()
    item = lab.page.locator(".jp-Gipfel-statusItem button")
    expect(item).to_contain_text("(simulated)", timeout=_LIMIT_MS)
    expect(item).to_contain_text("%", timeout=_LIMIT_MS)
    assert sections_of(lab) == ["saturation", "workloads", "runs", "vetting", "job", "checkpoints", "network"]
    items = menu_of(lab)
    labels = [text.strip() for text in items.all_inner_texts()]
    assert [label for label in labels if label] == labels
    screenshot(lab.page, "80-menu-light")
    assert len(labels) == 8
    for word in ("Panel Wide", "Training Launch", "Run as Batch Job", "Tour", "Documentation"):
        expect(items.filter(has_text=word)).to_have_count(1)
    lab.page.keyboard.press("Escape")
    # The panel is closed by its own tab, and opened again by the status bar.
    lab.page.locator(".jp-SideBar .lm-TabBar-tab[data-id='gipfel-panel']").click()
    expect(lab.panel).to_be_hidden()
    item.click()
    expect(lab.panel).to_be_visible()


def test_the_tour_of_a_first_visit_ends_at_the_notebook_to_start_with(
    new_page: Callable[[], Page], screenshot: Screenshot
) -> None:
    with LabServer("synthetic:training:4") as server:
        lab = LabPage(new_page())
        lab.page.goto(server.url)
        lab.wait_until_ready()
        tour = lab.panel.get_by_role("region", name="Tour")
        expect(tour).to_contain_text("1 of 5", timeout=_LIMIT_MS)
        assert serious_findings(lab.page, ".jp-Launcher") == []
        for name in ("Saturation", "Workloads", "Vetting"):
            tour.get_by_role("button", name="Next").press("Enter")
            expect(lab.panel.get_by_role("tab", selected=True)).to_contain_text(name)
            expect(tour).to_contain_text(name)
            assert serious_findings(lab.page, "#gipfel-panel") == [], name
        screenshot(lab.page, "84-tour-light")
        tour.get_by_role("button", name="Next").click()
        tour.get_by_role("button", name="Start here").click()
        expect(lab.page.locator(".jp-Notebook h1").first).to_contain_text("Start here", timeout=_LIMIT_MS)
        expect(tour).to_have_count(0)
        # It is there for whoever wants it again.
        menu_of(lab).filter(has_text="Tour").click()
        expect(tour).to_contain_text("1 of 5")
        lab.skip_tour()
        # A reload shows what was open, without the tour.
        lab.page.wait_for_timeout(2000)
        lab.page.reload()
        expect(lab.panel).to_be_visible(timeout=_LIMIT_MS)
        expect(tour).to_have_count(0)
        assert not lab.errors
        lab.page.close()


def test_tabs_follow_the_keyboard_and_are_remembered(lab: LabPage, screenshot: Screenshot) -> None:
    lab.open_panel()
    lab.choose_theme("JupyterLab Dark")
    expect(lab.panel.locator(".main-svg").first).to_be_visible(timeout=_LIMIT_MS)
    screenshot(lab.page, "81-plugins-dark")
    tabs = lab.panel.get_by_role("tab")
    tabs.first.focus()
    for key, name in (
        ("ArrowRight", "Workloads"),
        ("Home", "Saturation"),
        ("End", "Network"),
        ("ArrowLeft", "Checkpoints"),
        ("ArrowLeft", "Job"),
        ("ArrowLeft", "Vetting"),
    ):
        lab.page.keyboard.press(key)
        expect(lab.panel.get_by_role("tab", selected=True)).to_contain_text(name)
        expect(lab.panel.get_by_role("tab", name=name)).to_be_focused()
        expect(lab.panel.get_by_role("tabpanel")).to_have_count(1)
    expect(lab.panel.get_by_role("tabpanel")).to_contain_text("Not vetted yet", timeout=_LIMIT_MS)
    # The lab saves its state a moment later.
    lab.page.wait_for_timeout(2000)
    lab.page.reload()
    lab.wait_until_ready()
    lab.open_panel()
    expect(lab.panel.get_by_role("tab", selected=True)).to_contain_text("Vetting", timeout=_LIMIT_MS)
    # The status bar is about saturation.
    lab.page.locator(".jp-Gipfel-statusItem button").click()
    expect(lab.panel.get_by_role("tab", selected=True)).to_contain_text("Saturation")


def test_a_workload_of_another_packages_kind_is_listed_with_its_log_and_stopped(
    lab: LabPage, server: LabServer, screenshot: Screenshot
) -> None:
    environment = {"GIPFEL_RUNS": str(server.folder / "runs"), "HOME": str(server.folder)}
    started = SleepKind.start(600, environment)
    lab.choose_theme("JupyterLab Light")
    lab.open_panel()
    workloads = lab.open_section("Workloads")
    card = workloads.locator(f"[data-workload='sleep:{started.id}']")
    expect(card).to_have_attribute("data-state", "running", timeout=_LIMIT_MS)
    workloads.locator("select[name='kind']").select_option(label="other kinds")
    card.get_by_role("button", name="Log").click()
    expect(card.locator("pre")).to_have_text("going to sleep")
    screenshot(lab.page, "83-other-workload-light")
    card.get_by_role("button", name="Stop").click()
    expect(card).to_have_attribute("data-state", "stopped", timeout=_LIMIT_MS)
    expect(card.locator("pre")).to_contain_text("stopped")
    expect(card.get_by_role("button", name="Run again")).to_be_visible()
    lab.choose_theme("JupyterLab Dark")
    screenshot(lab.page, "83-other-workload-dark")


def _make_run(server: LabServer, number: int) -> None:
    folder = server.folder / "runs" / f"made-{number}"
    folder.mkdir(parents=True)
    times = {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T01:00:00+00:00"}
    command = {"directory": "/project", "command": ["python", "train.py", "30", "--lr", f"{number}e-4"]}
    (folder / "record.json").write_text(
        json.dumps({"kind": "recording", "exit_status": 0, **times, **command})
    )
    (folder / "score.json").write_text(json.dumps({"score": 40.0 + number, "losses": {}, "binding": {}}))
    for each in (*folder.iterdir(), folder):
        os.utime(each, (1_800_000_000 + number, 1_800_000_000 + number))


def test_runs_are_named_pinned_sorted_compared_pruned_and_deleted(
    lab: LabPage, server: LabServer, screenshot: Screenshot
) -> None:
    for number in range(1, 5):
        _make_run(server, number)
    lab.choose_theme("JupyterLab Light")
    lab.open_panel()
    lab.panel.get_by_role("button", name="Open wide").first.click()
    wide = lab.page.locator("#gipfel-wide-panel")
    wide.get_by_role("tab", name="Runs").click()
    rows = wide.locator("tr[data-run^='made-']")
    expect(rows).to_have_count(4)
    # A parameter without a name has none here.
    expect(rows.first.locator("[data-column='parameters']")).to_have_text("30 lr=4e-4")
    expect(wide.get_by_role("button", name="Open wide")).to_have_count(0)

    rows.last.locator("th button").click()
    for label, text in (("Name", "baseline"), ("Tags", "lr sweep"), ("Note", "first\nsecond")):
        wide.get_by_label(label, exact=True).fill(text)
    assert serious_findings(lab.page, "#gipfel-wide-panel") == [], "details of a run"
    wide.get_by_role("button", name="Save").click()
    expect(rows.last).to_contain_text("lr sweep")
    wide.get_by_role("button", name="Pin made-2").click()
    expect(rows.first).to_have_attribute("data-run", "made-2")
    wide.get_by_role("columnheader", name="Score").get_by_role("button").first.click()
    expect(rows.nth(1)).to_have_attribute("data-run", "made-4")
    for name in ("baseline", "made-2", "made-4"):
        wide.get_by_label(f"Select {name}").check()
    wide.get_by_role("button", name="Compare 3").click()
    comparison = wide.get_by_role("region", name="Comparison", exact=True)
    expect(comparison.locator("tr", has_text="score (points)")).to_contain_text("44 better")
    assert serious_findings(lab.page, "#gipfel-wide-panel") == [], "comparison"
    screenshot(lab.page, "85-runs")
    comparison.get_by_role("button", name="Close").click()

    wide.get_by_text("Old runs").click()
    wide.get_by_label("Keep the newest").fill("0")
    wide.get_by_role("button", name="Select the others").click()
    # Neither the pinned nor the tagged one.
    expect(wide.locator("tr[data-run^='made-'] input:checked")).to_have_count(2)
    wide.get_by_role("button", name="Delete…").click()
    assert serious_findings(lab.page, "#gipfel-wide-panel") == [], "old runs"
    wide.get_by_role("button", name="Delete 2 runs with their samples").click()
    expect(rows).to_have_count(2)
    assert sorted(each.name for each in (server.folder / "runs").glob("made-*")) == ["made-1", "made-2"]
    # The wide panel is closed, so that the other tests find the one in the sidebar.
    lab.page.locator("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current .lm-TabBar-tabCloseIcon").click()


def test_a_run_is_sent_to_an_mlflow_server_by_one_click(
    lab: LabPage, server: LabServer, screenshot: Screenshot
) -> None:
    _make_run(server, 9)
    lab.choose_theme("JupyterLab Light")
    lab.open_panel()
    runs = lab.open_section("Runs")
    runs.get_by_role("button", name="Refresh").click()
    runs.locator("tr[data-run='made-9'] th button").click()
    send = runs.get_by_role("button", name="Send to MLflow")
    link = runs.get_by_role("link", name="Open in MLflow")
    expect(link).to_have_count(0)
    send.click()
    dialog = lab.page.get_by_role("dialog")
    field = dialog.get_by_label("Address of the MLflow server")
    field.fill("mlflow.example.org")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not the address of an MLflow server")
    expect(field).to_have_value("mlflow.example.org")
    screenshot(lab.page, "86-send-to-mlflow-dialog")
    stand_in = MlflowStandIn()
    with stand_in.listening() as address:
        field.fill(address)
        dialog.get_by_role("button", name="Send").click()
        expect(link).to_have_attribute("href", f"{address}/#/experiments/1/runs/run0", timeout=_LIMIT_MS)
        assert serious_findings(lab.page, "#gipfel-panel") == [], "a run that was sent"
        screenshot(lab.page, "86-sent-to-mlflow-light")
        lab.choose_theme("JupyterLab Dark")
        screenshot(lab.page, "86-sent-to-mlflow-dark")
        lab.choose_theme("JupyterLab Light")
    (sent,) = stand_in.runs.values()
    assert (sent["status"], sent["tags"]["gipfel.run"]) == ("FINISHED", "made-9")

    # The dialog offers the same address; nothing listens there now.
    send.click()
    expect(field).to_have_value(address)
    dialog.get_by_role("button", name="Send").click()
    expect(runs.get_by_role("status").filter(has_text="Sending to MLflow")).to_be_visible()
    expect(runs.get_by_text("can't be reached")).to_be_visible(timeout=_LIMIT_MS)
    screenshot(lab.page, "86-not-sent-to-mlflow")
    runs.locator("tr[data-run='made-9'] th button").click()


def _agent_that_copies(staging: Path) -> psutil.Process:
    """Return the agent of a staging on this node as soon as it has read some of the data."""
    deadline = time.monotonic() + _LIMIT_MS / 1000
    while time.monotonic() < deadline:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if (
                    "gipfel_extension.data.stage.agent" in words
                    and str(staging) in words
                    and process.io_counters().read_chars > _SOME_BYTES
                ):
                    return process
    raise AssertionError(f"No agent copies for {staging}.")


def test_the_progress_of_a_staging_is_shown(lab: LabPage, server: LabServer, screenshot: Screenshot) -> None:
    data = server.folder / "imagenet.sqsh"
    with data.open("wb") as file:
        # Holes take no space here; the copy in memory is made in seconds.
        file.truncate(2 << 30)
    environment = {**os.environ, "GIPFEL_RUNS": str(server.folder / "runs"), "HOME": str(server.folder)}
    lab.choose_theme("JupyterLab Light")
    lab.open_panel()
    workloads = lab.open_section("Workloads")
    started = start_staging(StageSpec(data=(str(data),), to="memory"), environment)
    card = workloads.locator(f"[data-workload='transfer:{started.name}']")
    try:
        copying = _agent_that_copies(started)
        # Else the copy may be complete before the panel asks.
        copying.suspend()
        expect(card.get_by_role("progressbar")).to_be_visible(timeout=_LIMIT_MS)
        screenshot(lab.page, "84-staging-light")
        copying.resume()
        expect(card).to_contain_text("staged on 1 of 1 nodes (memory)", timeout=_LIMIT_MS)
        expect(card.get_by_role("progressbar")).to_have_count(0)
        card.get_by_role("button", name="Stop").click()
        expect(card).to_have_attribute("data-state", "stopped", timeout=_LIMIT_MS)
    finally:
        (started / STOP).touch()


def test_a_site_disables_one_feature_and_keeps_the_others(
    server: LabServer, new_page: Callable[[], Page], screenshot: Screenshot
) -> None:
    environment = {**os.environ, "HOME": str(server.folder), "JUPYTER_PREFER_ENV_PATH": "0"}
    for name in ("launches", "vetting"):
        command = [sys.executable, "-m", "jupyter", "labextension", "disable", "--level=user"]
        subprocess.run([*command, f"@gipfel/extension:{name}"], env=environment, check=True)
    # The filter offers what can be started here, and another kind once there is a workload of it.
    SleepKind.start(1, {"GIPFEL_RUNS": str(server.folder / "runs"), "HOME": str(server.folder)})
    lab = LabPage(new_page())
    lab.page.set_viewport_size({"width": 1000, "height": 900})
    lab.page.goto(server.url)
    lab.wait_until_ready()
    assert sections_of(lab) == ["saturation", "workloads", "runs", "job", "checkpoints", "network"]
    kinds = lab.open_section("Workloads").locator("select[name='kind'] option")
    expect(kinds).to_have_text(["all", "batch notebooks", "services", "other kinds"], timeout=_LIMIT_MS)
    lab.open_section("Saturation")
    expect(lab.page.locator(".jp-LauncherCard", has_text="Training Launch")).to_have_count(0)
    expect(lab.panel.locator(".main-svg").first).to_be_visible(timeout=_LIMIT_MS)
    items = menu_of(lab)
    expect(items).to_have_count(7)
    expect(items.filter(has_text="Training Launch")).to_have_count(0)
    screenshot(lab.page, "82-plugins-disabled")
    assert not lab.errors
    lab.page.close()
