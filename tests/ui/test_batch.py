"""A notebook as a batch job in a real browser: from its toolbar, by the local scheduler, to its output."""

import json
import os
import pickle
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_page import LabPage
from notebook_files import write_notebook
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect
from test_hub_pages import serious_findings

pytestmark = pytest.mark.browser

_LIMIT_MS = 120_000
#: Longer than the minute in the queue after which the start of a job is notified.
_QUEUE_S = 63
_BODY = """\
import pathlib, time
print("began", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.1)
print("heard", text)"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a lab in a folder of its own, with the token in it."""
    root, home, runtime = tmp_path / "root", tmp_path / "home", tmp_path / "runtime"
    for folder in (root, home, runtime):
        folder.mkdir()
    token = secrets.token_hex(8)
    foreign = ("GIPFEL_", "JUPYTER", "SLURM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment = {
        **kept, "HOME": str(home), "JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_TOKEN": token,
        "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    argv = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", "--allow-root"]
    argv += [f"--ServerApp.root_dir={root}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    try:
        found = runtime / f"jpserver-{process.pid}.json"
        deadline = time.monotonic() + 90
        while not _answers(found):
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        address = json.loads(found.read_text())["url"].replace("localhost", "127.0.0.1")
        yield f"{address}lab/tree/in.ipynb?token={token}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(found: Path) -> bool:
    try:
        url = json.loads(found.read_text())["url"].replace("localhost", "127.0.0.1")
        urllib.request.urlopen(f"{url}api", timeout=2).close()
    except (OSError, ValueError):
        return False
    return True


def test_a_notebook_is_submitted_from_its_toolbar_and_watched_to_its_end(
    lab: str,
    browser: Browser,
    tmp_path: Path,
    screenshot: Callable[[Page, str], Path],
    request: pytest.FixtureRequest,
) -> None:
    root = tmp_path / "root"
    write_notebook(root / "in.ipynb", body=_BODY)
    # Its jobs outlive the lab: where this fails, they must not wait for ever.
    request.addfinalizer((root / "go").touch)
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    page = context.new_page()
    here = LabPage(page)
    page.goto(lab)
    expect(page.locator(".jp-NotebookPanel").first).to_be_visible(timeout=_LIMIT_MS)
    here.decline_news()
    # Nobody has to look for the panel: it is open at the first visit.
    expect(here.panel).to_be_visible()
    jobs = here.open_section("Workloads")
    expect(jobs).to_contain_text("None yet", timeout=_LIMIT_MS)

    def ask() -> None:
        button = page.locator(".jp-NotebookPanel-toolbar [data-command='gipfel:run-as-batch-job']")
        expect(button.first).to_contain_text("Run as batch job", timeout=_LIMIT_MS)
        button.first.click(timeout=_LIMIT_MS)
        expect(page.locator(".jp-Gipfel-batch-dialog")).to_be_visible(timeout=_LIMIT_MS)

    # What the notebook's cell says stands in the fields; a mistake is one line, and no job.
    ask()
    field = page.locator("input[name='parameter-seconds']")
    expect(field).to_have_attribute("placeholder", "0.1")
    field.fill("soon")
    page.get_by_role("button", name="Submit").click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("declares 'seconds' as float", timeout=_LIMIT_MS)
    expect(jobs).to_contain_text("None yet")
    # Where it would run is said, and what was typed is still there.
    expect(dialog.get_by_label("Where")).to_have_value("local")
    expect(field).to_have_value("soon")
    screenshot(page, "32-batch-dialog")
    assert serious_findings(page, ".jp-Dialog") == []
    field.fill("0.1")
    page.locator("input[name='parameter-text']").fill("the mountain")
    page.get_by_role("button", name="Submit").click()
    task = jobs.locator("li").first
    expect(task).to_have_attribute("data-state", "RUNNING", timeout=_LIMIT_MS)
    expect(task).to_contain_text("2 of 4 cells", timeout=_LIMIT_MS)
    # The output opens while it runs.
    task.get_by_role("button", name="Open").click()
    expect(page.locator(".jp-NotebookPanel").last).to_contain_text("the mountain", timeout=_LIMIT_MS)
    # The lab saves its state, which says what was shown, some time after a change.
    with page.expect_request(_saves_shown_events, timeout=_LIMIT_MS):
        (root / "go").touch()
        expect(task).to_have_attribute("data-state", "COMPLETED", timeout=_LIMIT_MS)
    expect(task).to_contain_text("4 of 4 cells")
    assert "heard the mountain" in (root / "in-run.ipynb").read_text()
    ended = page.locator(".Toastify__toast", has_text="has ended")
    expect(ended).to_contain_text("It completed after", timeout=_LIMIT_MS)
    expect(ended.get_by_role("button", name="Show workload")).to_be_visible()
    screenshot(page, "36-batch-ended")
    # Two runs, one after the other: the first one waits for a file.
    (root / "go").unlink()
    page.locator("#jp-main-dock-panel .lm-TabBar-tabLabel", has_text="in.ipynb").click()
    ask()
    page.locator("input[name='parameter-text']").fill("* early,late")
    page.get_by_role("button", name="Submit").click()
    submitted = time.monotonic()
    # A reload loses nothing of the list.
    page.reload()
    expect(page.locator("#jupyterlab-splash")).to_have_count(0, timeout=_LIMIT_MS)
    # The output was the one in front.
    expect(page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").first).to_be_visible(timeout=_LIMIT_MS)
    if not here.panel.is_visible():
        here.open_panel()
    expect(jobs.locator("li[data-state='COMPLETED']")).to_have_count(1, timeout=_LIMIT_MS)
    expect(jobs.locator("li[data-state='PENDING']")).to_have_count(1, timeout=_LIMIT_MS)
    # What was shown before the reload is not shown again.
    expect(ended).to_have_count(0)
    here.choose_theme("JupyterLab Dark")
    page.wait_for_timeout(max(0.0, _QUEUE_S - (time.monotonic() - submitted)) * 1000)
    (root / "go").touch()
    _follow_the_queue(here, jobs, screenshot)
    assert here.errors == []
    context.close()


def _saves_shown_events(request: Request) -> bool:
    return "/api/workspaces/" in request.url and "has ended" in (request.post_data or "")


def _follow_the_queue(lab: LabPage, jobs: Locator, screenshot: Callable[[Page, str], Path]) -> None:
    """See in notifications that a job which waited has started, and that both have ended."""
    page = lab.page
    toasts = page.locator(".Toastify__toast")
    started = toasts.filter(has_text="has started")
    expect(started).to_contain_text("It waited 1 min in the queue.", timeout=_LIMIT_MS)
    # Its run, and the one that did not wait.
    late = re.search(r"\S+_1", started.inner_text())
    assert late, started.inner_text()
    screenshot(page, "37-batch-started-dark")
    ended = toasts.filter(has_text="has ended")
    for name in (late[0].strip("()"), late[0].strip("()").replace("_1", "_0")):
        expect(ended.filter(has_text=name)).to_have_count(1, timeout=_LIMIT_MS)
    screenshot(page, "38-batch-queue-ended-dark")
    assert serious_findings(page, ".Toastify") == []
    ended.first.get_by_role("button", name="Show workload").click()
    expect(jobs.locator("li[data-state='COMPLETED']")).to_have_count(3)


def _as_in_a_hub(route: Route) -> None:
    if route.request.method != "GET":
        route.continue_()
        return
    answer = route.fetch()
    services = [each | {"in_hub": True, "refusal": ""} for each in answer.json()["services"]]
    route.fulfill(response=answer, json={"services": services})


def test_a_service_is_started_from_its_tile_opened_and_stopped(
    lab: str, browser: Browser, tmp_path: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    (tmp_path / "home" / "shown").mkdir()
    (tmp_path / "home" / "shown" / "report.txt").write_text("from the service")
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    page = context.new_page()
    # Only in a hub a service can be shared.
    page.route(re.compile(r"/gipfel/services(\?|$)"), _as_in_a_hub)
    here = LabPage(page)
    page.goto(lab.replace("/tree/in.ipynb", ""))
    here.wait_until_ready()
    here.decline_news()
    services = here.open_section("Workloads")
    tile = page.locator(".jp-LauncherCard[data-category='Services']", has_text="Files of a directory")
    expect(tile).to_be_visible(timeout=_LIMIT_MS)
    tile.click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("license BSD-3-Clause", timeout=_LIMIT_MS)
    expect(dialog).to_contain_text("costs no GPU and 1 CPU hour per hour")
    dialog.get_by_text("Limits, and what is left").click()
    expect(dialog).to_contain_text("Jobs have no limits here.")
    screenshot(page, "34-service-dialog")
    assert serious_findings(page, ".jp-Dialog") == []
    # A mistake is one line, and nothing is started.
    dialog.get_by_role("button", name="Start").click()
    expect(dialog.get_by_role("alert")).to_contain_text("needs a value for the parameter 'directory'")
    dialog.locator("input[name='parameter-directory']").fill("~/shown")
    dialog.get_by_role("button", name="Start").click()
    row = services.locator("[data-workload='service:files']")
    expect(row).to_have_attribute("data-state", "running", timeout=_LIMIT_MS)
    link = row.get_by_role("link", name="Open the service files")
    screenshot(page, "35-service-row")
    row.get_by_role("button", name="Share").click()
    expect(dialog.get_by_label("With a")).to_be_visible()
    screenshot(page, "35-service-share")
    assert serious_findings(page, ".jp-Dialog") == []
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    token = (tmp_path / "home/.gipfel/services/files/token").read_text().strip()
    with context.expect_page() as opened:
        link.click()
    login = opened.value
    login.get_by_label("Token").fill(token)
    login.get_by_role("button", name="Log in").click()
    expect(login.get_by_role("link", name="report.txt")).to_be_visible()
    # The tile of a running service opens it.
    with context.expect_page() as again:
        tile.click()
    expect(again.value.get_by_role("link", name="report.txt")).to_be_visible(timeout=_LIMIT_MS)
    row.get_by_role("button", name="Log").click()
    expect(row.locator("pre")).to_contain_text("GET /")
    row.get_by_role("button", name="Stop").click()
    expect(row).to_have_attribute("data-state", "stopped", timeout=_LIMIT_MS)
    expect(row.get_by_role("button", name="Run again")).to_be_visible()
    assert here.errors == []
    context.close()


def test_a_file_is_scanned_from_the_file_browser_and_has_a_badge(
    lab: str, browser: Browser, tmp_path: Path, screenshot: Callable[[Page, str], Path]
) -> None:
    root = tmp_path / "root"
    write_notebook(root / "in.ipynb", body="1")
    (root / "good.pkl").write_bytes(pickle.dumps([1, 2]))
    (root / "bad.pkl").write_bytes(b"cos\nsystem\n(S'touch loaded'\ntR.")
    for path in (root / "good.pkl", root / "bad.pkl"):
        os.utime(path, (time.time() - 60,) * 2)
    # The change time of a file can't be set: a verdict is kept once it is two seconds old.
    time.sleep(max(0.0, (root / "bad.pkl").stat().st_ctime + 2.1 - time.time()))
    context = browser.new_context(viewport={"width": 1500, "height": 900})
    page = context.new_page()
    here = LabPage(page)
    page.goto(lab)
    expect(page.locator(".jp-NotebookPanel").first).to_be_visible(timeout=_LIMIT_MS)
    here.decline_news()
    for name, words in (("bad.pkl", "Malicious: do not load it"), ("good.pkl", "Plain: loading it")):
        row = page.locator(".jp-DirListing-item", has_text=name)
        expect(row.locator(".jp-Gipfel-verdict")).to_have_count(0)
        row.click(button="right")
        page.locator(".lm-Menu").get_by_text("Scan", exact=True).click()
        dialog = page.locator(".jp-Dialog")
        expect(dialog).to_contain_text(words, timeout=_LIMIT_MS)
        if name == "bad.pkl":
            expect(dialog).to_contain_text("system")
            screenshot(page, "34-scan-dialog")
        dialog.get_by_role("button", name="Close").click()
        expect(row.locator(".jp-Gipfel-verdict")).to_have_attribute("title", re.compile(words))
    screenshot(page, "35-scan-badges")
    assert not (root / "loaded").exists()
    assert here.errors == []
    context.close()
