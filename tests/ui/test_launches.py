"""A launch from a form in a notebook, in a real browser: watched, reopened, stopped, and in the panel."""

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_page import LabPage
from lab_server import LabServer
from playwright.sync_api import Browser, Locator, Page, expect

from gipfel_extension.training.launch import Launch

pytestmark = pytest.mark.browser

_LIMIT_MS = 120_000
_NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
_PROGRAM = """\
import os, pathlib, sys, time
import torch, torch.distributed as dist
from gipfel_widgets import log

dist.init_process_group("gloo")
rank = dist.get_rank()
print("arguments", sys.argv[1:], flush=True)
stop = pathlib.Path("stop")
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight])
for step in range(1, 100_001):
    weight.grad = torch.ones(1)
    optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
    log(step=step, total_steps=100_000, loss=2 / step, tokens_per_s=1000.0 * dist.get_world_size())
    print(f"step {step} sum {total.item():.0f}", flush=True)
    if rank == 1 and pathlib.Path("break").exists():
        raise ValueError("the wrong mountain")
    time.sleep(0.25)
"""
_CELL = """\
from gipfel_widgets import LaunchCell
LaunchCell(script="train.py", args=["--text", "a 'b' $(c) <i>"], gpus_per_node=2, profile=True)"""

#: A GPU in name only, and a process that stands for another kernel.
_HELD = """\
import os, pathlib, subprocess
from gipfel_widgets import LaunchCell
child = subprocess.Popen(["sleep", "1000"])
pathlib.Path("held").write_text(str(child.pid))
program = pathlib.Path("bin/nvidia-smi").absolute()
program.parent.mkdir()
program.write_text(f'''#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-a, Exclusive_Process" ;;
  *) echo "{child.pid}, GPU-a, python3" ;;
esac
''')
program.chmod(0o755)
os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
LaunchCell(script="train.py", gpus_per_node=1)"""


@pytest.fixture
def page(browser: Browser) -> Page:
    # In a zone without summer time, west of the date's line.
    return browser.new_context(
        viewport={"width": 1600, "height": 1000}, timezone_id="Pacific/Honolulu"
    ).new_page()


@pytest.fixture
def lab() -> Iterator[LabServer]:
    """A lab; what was launched in it outlives it, but not the test."""
    with LabServer() as found:
        yield found
        for folder in found.folder.glob("runs/*/launches/[0-9]*"):
            launch = Launch(folder)
            launch.stop()
            assert launch.wait(_LIMIT_MS / 1000) is not None


def _api(lab: LabServer, path: str) -> Any:
    token = lab.url.partition("token=")[2]
    request = urllib.request.Request(
        f"{lab.url.partition('/lab')[0]}/{path}", headers={"Authorization": f"token {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def _launches(lab: LabServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _api(lab, "gipfel/launches")["launches"]
    return found


def _run_instead(page: Page, source: str) -> None:
    """Put other words into the notebook's first cell and run it."""
    indicator = page.locator(".jp-NotebookPanel-toolbar .jp-Notebook-ExecutionIndicator").first
    expect(indicator).to_have_attribute("data-status", "idle", timeout=_LIMIT_MS)
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")


def _save(page: Page) -> None:
    page.locator(
        ".jp-NotebookPanel-toolbar [data-jp-item-name='save'] button, "
        ".jp-NotebookPanel-toolbar [data-command='docmanager:save']"
    ).first.click()
    expect(page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0, timeout=_LIMIT_MS)


def _step(view: Locator) -> int:
    words = view.locator(".jp-Gipfel-launch-progress").inner_text(timeout=_LIMIT_MS)
    match = re.search(r"step ([\d,]+)", words)
    return int(match[1].replace(",", "")) if match else 0


def _has_steps(link: Locator) -> bool:
    """Download what a link leads to: whether it is a trace with steps of the optimizer."""
    with link.page.expect_download(timeout=_LIMIT_MS) as started:
        link.click()
    events = json.loads(started.value.path().read_text())["traceEvents"]
    return any("Optimizer.step" in each.get("name", "") for each in events)


def _wait_until_further(view: Locator, before: int) -> None:
    end = time.monotonic() + _LIMIT_MS / 1000
    while _step(view) <= before:
        assert time.monotonic() < end
        view.page.wait_for_timeout(300)


def _open_from_launcher(page: Page, screenshot: Callable[[Page, str], Path]) -> None:
    """Press "Training Launch" in the launcher, see its form without running a cell, and come back."""
    cards = page.locator(".jp-LauncherCard[data-category='Gipfel']")
    # The panel, the job page, a new launch, the documentation, and the notebooks that come with Gipfel.
    expect(cards.filter(has_text="Train on many GPUs")).to_be_visible()
    expect(cards.filter(has_text="Docs")).to_be_visible()
    expect(cards).to_have_count(4 + len(list(_NOTEBOOKS.glob("*.ipynb"))))
    screenshot(page, "33-launcher")
    cards.filter(has_text="Training Launch").click()
    output = page.locator(".jp-OutputArea").first
    output.get_by_role("button", name="Launch", exact=True).click(timeout=_LIMIT_MS)
    expect(output.get_by_role("alert")).to_contain_text("The field 'File' is empty", timeout=_LIMIT_MS)
    assert output.locator("label[title='null']:visible, input[title='null']:visible").count() == 0
    screenshot(page, "34-launch-form")
    page.locator(".lm-TabBar-tab.jp-mod-current .lm-TabBar-tabCloseIcon").first.click()
    page.locator(".jp-Dialog").get_by_role("button", name=re.compile("Discard|Don't Save")).click()
    expect(cards.first).to_be_visible(timeout=_LIMIT_MS)


def _follow_the_notification(lab: LabPage, screenshot: Callable[[Page, str], Path]) -> None:
    """See why a launch failed in a notification, and follow its link."""
    told = lab.page.locator(".Toastify__toast", has_text=re.compile("Launch .* failed"))
    expect(told).to_contain_text("the wrong mountain", timeout=_LIMIT_MS)
    # Where it will stay.
    told.get_by_role("button", name="Open report").hover()
    screenshot(lab.page, "40-notification")
    told.get_by_role("button", name="Show workload").click()
    shown = lab.page.locator("#jp-main-dock-panel [id^='gipfel-workload-']").locator("visible=true")
    expect(shown.first).to_contain_text("the wrong mountain")
    expect(told).to_have_count(0)
    _close_tab(lab.page)


def _choose_utc(lab: LabPage, launch: Locator, screenshot: Callable[[Page, str], Path]) -> None:
    """Choose UTC in JupyterLab's settings: log, event, axis and hover are in local time before."""
    page, zone = lab.page, launch.get_by_title("Time zone of the log")
    expect(zone).to_have_text("HST")
    _assert_clock(lab, "HST")
    lab.open_section("Workloads")
    if not zone.count():
        launch.get_by_role("button", name="Log").click()
    page.locator(".lm-MenuBar-item", has_text="Settings").click()
    page.locator(".lm-Menu-item", has_text="Settings Editor").first.click()
    page.locator(".jp-PluginList-entry", has_text="Gipfel: Panel").click(timeout=_LIMIT_MS)
    page.locator(".jp-SettingsPanel select[id*='clock']").select_option(label="in UTC")
    expect(zone).to_have_text("UTC")
    screenshot(page, "41-utc-setting")
    _assert_clock(lab, "UTC")
    screenshot(page, "41-utc")
    _close_tab(page)


def _close_tab(page: Page) -> None:
    """Close the current tab of the main area."""
    page.locator("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current .lm-TabBar-tabCloseIcon").click()


def _assert_clock(lab: LabPage, zone: str) -> None:
    """The newest event, the axis and the hover of the first plot have the same time zone."""
    section = lab.open_section("Saturation")
    events = section.locator("details", has=lab.page.locator(".jp-Gipfel-events"))
    if events.get_attribute("open") is None:
        events.locator("summary").click()
    expect(events.locator("time").first).to_contain_text(zone)
    lab.page.wait_for_function(
        """zone => {
          const { xaxis, ...layout } = document.querySelector('#gipfel-panel .js-plotly-plot').layout;
          const titles = Object.keys(layout).filter(key => key.startsWith('xaxis')).map(key => layout[key]);
          const isNamed = [xaxis, ...titles].some(each => each.title?.text === zone);
          return isNamed && xaxis.hoverformat.endsWith(zone);
        }""",
        arg=zone,
        timeout=_LIMIT_MS,
    )


def test_a_launch_from_the_form_outlives_page_and_kernel(
    page: Page, lab: LabServer, screenshot: Callable[[Page, str], Path]
) -> None:
    here = LabPage(page)
    (lab.folder / "train.py").write_text(_PROGRAM)
    page.goto(lab.url)
    here.wait_until_ready()
    here.close_left_sidebar()
    _open_from_launcher(page, screenshot)
    here.run_cell(_CELL)
    output = page.locator(".jp-OutputArea").first
    view = page.locator(".jp-Gipfel-widget article").first

    # A check shows the exact command and starts nothing.
    output.get_by_role("button", name="Check", exact=True).click(timeout=_LIMIT_MS)
    expect(output).to_contain_text("nothing was started", timeout=_LIMIT_MS)
    expect(output).to_contain_text("train.py exists")
    # Nothing ran: no stage beyond the pre-flight is reached, and there is no log.
    expect(view).to_have_attribute("data-status", "checked")
    expect(view.locator(".jp-Gipfel-launch-phases [data-reached='true']")).to_have_text(["preflight"])
    expect(view.get_by_role("log")).to_have_count(0)
    assert _launches(lab) == []
    screenshot(page, "35-launch-checked")

    output.get_by_role("button", name="Launch", exact=True).click()
    expect(view).to_have_attribute("data-status", "running", timeout=_LIMIT_MS)
    log = view.get_by_role("log")
    expect(log).to_contain_text("a 'b' $(c) <i>", timeout=_LIMIT_MS)
    expect(log.locator("b[data-colour='1']").first).to_be_visible(timeout=_LIMIT_MS)
    expect(view.locator(".jp-Gipfel-launch-progress")).to_contain_text("tokens/s", timeout=_LIMIT_MS)
    # On one node nothing is multiplied.
    expect(view.locator("header")).to_contain_text("2 ranks")
    expect(view.locator("header")).not_to_contain_text("\u00d7")
    _wait_until_further(view, _step(view))
    view.get_by_label("Rank filter").select_option("1")
    expect(log.locator("b[data-colour='0']")).to_have_count(0, timeout=_LIMIT_MS)
    expect(log.locator("b[data-colour='1']").first).to_be_visible(timeout=_LIMIT_MS)
    view.get_by_label("errors only").check()
    expect(log).to_have_text("No lines about errors.")

    # A trace of every rank is a link to its file.
    files = view.locator("summary", has_text="Files of ranks")
    expect(files).to_be_visible(timeout=_LIMIT_MS)
    files.click()
    traces = view.locator(".jp-Gipfel-launch-files p", has_text="Profiler traces")
    expect(traces.get_by_role("link")).to_have_text(["rank 0", "rank 1"], timeout=_LIMIT_MS)
    assert _has_steps(traces.get_by_role("link", name="rank 0"))

    # The page is reloaded: the kernel has the view still.
    before = _step(view)
    _save(page)
    page.reload()
    expect(view).to_have_attribute("data-status", "running", timeout=_LIMIT_MS)
    expect(view.get_by_role("log")).to_contain_text("sum 2", timeout=_LIMIT_MS)
    _wait_until_further(view, before)

    # The panel has it, with its log.
    here.open_panel()
    row = here.open_section("Workloads").locator("article").first
    expect(row).to_have_attribute("data-status", "running", timeout=_LIMIT_MS)
    expect(row).to_contain_text("tokens/s", timeout=_LIMIT_MS)
    expect(row.locator("header")).to_contain_text("2 ranks")
    expect(row.locator("header")).not_to_contain_text("\u00d7")
    row.get_by_role("button", name="Log").click()
    expect(row.get_by_role("log")).to_contain_text("sum 2", timeout=_LIMIT_MS)
    row.locator("summary", has_text="Files of ranks").click()
    assert _has_steps(row.get_by_role("link", name="rank 1"))
    expect(row.get_by_role("link", name="Perfetto")).to_have_attribute("href", "https://ui.perfetto.dev")
    # All its ranks, on the job page.
    row.get_by_role("button", name="All ranks").click()
    job = page.locator("#gipfel-job")
    expect(job).to_contain_text("2 ranks", timeout=_LIMIT_MS)
    _close_tab(page)
    here.choose_theme("JupyterLab Dark")

    # The kernel is killed: the launch continues, and the same cell finds it again.
    _run_instead(page, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("died", timeout=_LIMIT_MS)
    dialog.locator("button.jp-mod-accept").click()
    before = _launches(lab)[0]["progress"]["step"]
    end = time.monotonic() + _LIMIT_MS / 1000
    while _launches(lab)[0]["progress"]["step"] <= before:
        assert time.monotonic() < end
        page.wait_for_timeout(300)
    assert _launches(lab)[0]["status"] == "running"
    _run_instead(page, "from gipfel_widgets import launch\nlaunch(1)")
    expect(view).to_have_attribute("data-status", "running", timeout=_LIMIT_MS)
    expect(view.get_by_role("log")).to_contain_text("step", timeout=_LIMIT_MS)

    # Stopped from the cell; what is left needs no kernel: a card with state, duration, pace and log.
    view.get_by_role("button", name="Stop").click()
    ended = page.locator(".jp-Notebook .jp-Gipfel-savedLaunch article").first
    expect(ended).to_have_attribute("data-status", "stopped", timeout=_LIMIT_MS)
    expect(ended.locator("header")).to_contain_text(re.compile(r"\d+ (s|min)"))
    expect(ended).to_contain_text(re.compile(r"[\d.,]+ tokens/s"))
    # What the ranks printed is there without a click.
    expect(ended.get_by_role("log")).to_contain_text("step", timeout=_LIMIT_MS)
    ended.scroll_into_view_if_needed()
    screenshot(page, "39-ended-launch")
    ended.get_by_role("button", name="Log").click()
    expect(ended.get_by_role("log")).to_have_count(0)
    expect(row).to_have_attribute("data-status", "stopped", timeout=_LIMIT_MS)
    here.choose_theme("JupyterLab Light")

    # Again, from the panel; it fails, and the first failing rank is named.
    row.get_by_role("button", name="Run again").click()
    again = here.panel.locator("[data-section='workloads'] article", has_text="#2")
    expect(again).to_have_attribute("data-status", "running", timeout=_LIMIT_MS)
    expect(again).to_contain_text("step", timeout=_LIMIT_MS)
    (lab.folder / "break").touch()
    expect(again).to_have_attribute("data-status", "failed", timeout=_LIMIT_MS)
    expect(again).to_contain_text("rank 1 on")
    expect(again).to_contain_text("the wrong mountain")
    again.get_by_role("button", name="Log").click()
    again.get_by_label("errors only").check()
    expect(again.get_by_role("log")).to_contain_text("ValueError: the wrong mountain", timeout=_LIMIT_MS)

    # The failure is told with its reason and a link, and one setting shows all times in UTC.
    _follow_the_notification(here, screenshot)
    _choose_utc(here, again, screenshot)

    # A process of this server holds the GPU: it is named, and ended by a button.
    _run_instead(page, _HELD)
    output.get_by_role("button", name="Check", exact=True).click(timeout=_LIMIT_MS)
    free = output.get_by_role("button", name="Stop these processes", exact=True)
    expect(free).to_be_visible(timeout=_LIMIT_MS)
    pid = (lab.folder / "held").read_text()
    expect(output).to_contain_text(f"used by pid {pid} (the kernel of")
    assert Path(f"/proc/{pid}").exists()
    free.click()
    expect(output).to_contain_text(f"Stopped: pid {pid}", timeout=_LIMIT_MS)
    assert not Path(f"/proc/{pid}/exe").exists()
    assert here.errors == []
