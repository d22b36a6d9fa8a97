"""A widget in a reopened notebook: first its saved view, then the live one when the kernel answers."""

import json
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_page import LabPage, moves
from lab_server import LabServer
from playwright.sync_api import Page, expect
from test_hub_pages import serious_findings

from gipfel_widgets.output import LIVE

pytestmark = pytest.mark.browser

_LIMIT_MS = 120_000
_BUSY_CELL = """\
import pathlib, time
from gipfel_widgets import Saturation
view = Saturation()
display(view)
%launch --script train.py
while not pathlib.Path("go-on").exists():
    time.sleep(0.1)
"""
_PROGRAM = """\
import pathlib, time
while not pathlib.Path("end").exists():
    time.sleep(0.1)
"""


def save(page: Page, notebook: Path) -> None:
    """Save it, the widgets' outputs with it; that of the launch names it once it has started."""
    end = time.monotonic() + _LIMIT_MS / 1000
    while not any("launch" in each for each in live_outputs(notebook)):
        assert time.monotonic() < end
        page.keyboard.press("Control+s")
        page.wait_for_timeout(500)


def live_outputs(notebook: Path) -> list[dict[str, str]]:
    """Return what a notebook keeps of the widgets in its outputs; nothing while it is being saved."""
    try:
        cells = json.loads(notebook.read_text())["cells"]
    except json.JSONDecodeError:
        return []
    found = [each.get("data", {}) for cell in cells for each in cell.get("outputs", ())]
    return [data[LIVE] for data in found if LIVE in data]


def end_launch(folder: Path) -> None:
    """End the launch while no page looks."""
    (folder / "end").touch()
    (launch,) = folder.glob("runs/*/launches/1")
    end = time.monotonic() + _LIMIT_MS / 1000
    while not (launch / "exit.json").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def end_kernels(server: LabServer) -> None:
    """End the kernels as the server's page of running ones does."""
    base, _, token = server.url.partition("/lab?token=")
    headers = {"Authorization": f"token {token}"}
    with urllib.request.urlopen(urllib.request.Request(f"{base}/api/kernels", headers=headers)) as answer:
        kernels = [each["id"] for each in json.loads(answer.read())]
    for kernel in kernels:
        request = urllib.request.Request(f"{base}/api/kernels/{kernel}", headers=headers, method="DELETE")
        urllib.request.urlopen(request).close()


def test_a_saved_view_is_there_while_its_kernel_is_busy_and_lives_afterwards(
    new_page: Callable[[], Page], screenshot: Callable[[Page, str], object]
) -> None:
    page = new_page()
    lab = LabPage(page)
    output = page.locator(".jp-Notebook .jp-OutputArea-output").first
    live, saved = output.locator("[data-figure=activity]"), output.locator(".jp-Gipfel-renderedPlotly")
    launch = page.locator(".jp-Notebook .jp-Gipfel-widget article")
    card = page.locator(".jp-Notebook .jp-Gipfel-savedLaunch article")
    broken = page.locator(".jp-Notebook").get_by_text(re.compile("Loading widget|Error displaying"))
    broken = broken.filter(visible=True)
    with LabServer("host") as server:
        (server.folder / "train.py").write_text(_PROGRAM)
        page.goto(server.url)
        lab.wait_until_ready()
        lab.run_cell(_BUSY_CELL)
        expect(live).to_be_visible(timeout=_LIMIT_MS)
        expect(saved).to_have_count(0)
        expect(launch).to_have_attribute("data-status", "running", timeout=_LIMIT_MS)
        save(page, server.folder / "Untitled.ipynb")

        # The launch ends while no page is there, so that the notebook keeps how it began.
        page.goto("about:blank")
        end_launch(server.folder)
        page.goto(server.url)
        expect(saved.locator(".main-svg").first).to_be_visible(timeout=_LIMIT_MS)
        expect(output).to_contain_text("Saved view.")
        expect(card).to_have_attribute("data-status", "completed", timeout=_LIMIT_MS)
        expect(card).to_contain_text("#1")
        expect(broken).to_have_count(0)
        screenshot(page, "23-saved-view")

        (server.folder / "go-on").touch()
        expect(live).to_be_visible(timeout=_LIMIT_MS)
        expect(saved).to_have_count(0)
        expect(launch).to_have_attribute("data-status", "completed", timeout=_LIMIT_MS)
        expect(card).to_have_count(0)
        assert moves(live)
        assert serious_findings(page, ".jp-Notebook .jp-Gipfel-widget") == []

        # Of a kernel that is gone nothing can be found; the server knows the launch.
        end_kernels(server)
        page.reload()
        expect(card).to_have_attribute("data-status", "completed", timeout=_LIMIT_MS)
        expect(saved.locator(".main-svg").first).to_be_visible(timeout=_LIMIT_MS)
        expect(broken).to_have_count(0)
        assert not lab.errors
    page.close()
