"""The job page in a browser: a role expression selects the same ranks in every tab, and a reload keeps it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from job_page_runs import made_run, running_launch
from lab_page import LabPage, traces
from lab_server import LabServer
from playwright.sync_api import Page, expect
from test_checkpoint_cost import course, run_with
from test_hub_pages import serious_findings

from gipfel_extension.recorder.journal import Journal
from gipfel_extension.recorder.sample_files import SampleWriter, Settings
from gipfel_extension.telemetry.sample import Device, Provenance, Sample
from gipfel_extension.telemetry.sources import SystemClock

pytestmark = pytest.mark.browser

_CHOSEN = ["4"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    with LabServer("synthetic:training:4") as running:
        made_run(running.folder / "runs" / "made-1", tmp_path_factory.mktemp("gh200"))
        yield running


def test_checkpoints_show_what_they_cost_on_the_page_and_in_the_panel(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    steps, writes, _ = course(0.2, stall_s=0.2)
    run = run_with(server.folder, writes, steps)
    (run / "telemetry").mkdir()
    origin = Provenance("n1", "job", "test", True, 1.0, (Device("host", "host", "n1", None, "n1"),))
    journal = Journal(run / "telemetry", "n1", "job", SystemClock())
    samples = SampleWriter(Settings(run / "telemetry", "n1", "job", 1.0, 5.0), origin, journal, SystemClock())
    samples.add([Sample(int(steps.time_ns[0]), 0, "host", {"CPU_UTIL": 0.5})])
    samples.flush()
    samples.finish()
    lab = LabPage(new_page())
    lab.page.goto(f"{server.url}&gipfel-job={quote('tab=checkpoints&run=alps-17')}")
    job = lab.page.locator("#gipfel-job")
    expect(job.get_by_role("heading", name="10 checkpoints cost")).to_be_visible()
    expect(job.locator("[data-figure='checkpoints'] .shapelayer path")).to_have_count(10)
    row = job.get_by_role("row", name=f"step-{writes[-1].step}")
    expect(row).to_contain_text("whole")
    expect(row).to_contain_text("2.50 s")
    screenshot(lab.page, "95-job-checkpoints-light")
    lab.panel.get_by_role("tab", name="Checkpoints").click()
    panel = lab.panel.locator("[data-section='checkpoints']")
    expect(panel.get_by_text("10 checkpoints cost")).to_be_visible()
    screenshot(lab.page, "95-panel-checkpoints-light")
    assert not lab.errors
    lab.page.close()


def test_a_role_expression_selects_in_every_tab_and_a_reload_keeps_it(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    lab = LabPage(new_page())
    lab.page.goto(f"{server.url}&gipfel-job={quote('tab=overview&run=made-1')}")
    job = lab.page.locator("#gipfel-job")
    expect(job.locator(".heatmaplayer image").first).to_be_visible()
    around = job.get_by_role("region", name="The cluster around this job")
    expect(around).to_contain_text("Switch leaf1: 4 nodes of this job, 2 of 2 other jobs, 1 idle, 0 down")
    expect(around.locator("[data-source]")).to_contain_text("from sinfo and squeue, recorded")
    expect(around.locator(".main-svg").first).to_be_visible()
    screenshot(lab.page, "95-job-overview-light")
    around.scroll_into_view_if_needed()
    screenshot(lab.page, "95-job-cluster-around")
    files = job.get_by_role("region", name="Files and file systems")
    expect(files).to_contain_text("/scratch/imagenet has small files (57 kB on average)")
    expect(files.get_by_role("row", name="/scratch/imagenet/*")).to_contain_text("shared (lustre)")
    expect(files).to_contain_text("Only root reads /sys/kernel/debug")
    expect(files.locator(".main-svg").first).to_be_visible()
    expect(job).to_contain_text("A file system answers slowly, whatever the job does")
    files.scroll_into_view_if_needed()
    screenshot(lab.page, "95-job-files")
    # What is shown of a run that has ended are the minute before its last sample, and two times in it.
    ranges = job.get_by_label("Time range")
    ranges.select_option("1 min")
    lab.page.wait_for_function("decodeURIComponent(location.search).includes('last=60')")
    ranges.select_option("times")
    screenshot(lab.page, "95-job-times")
    figure = job.locator("[data-figure='bands']")
    figure.focus()
    lab.page.keyboard.press("+")
    lab.page.wait_for_function("decodeURIComponent(location.search).includes('until=')")
    # The address changes before the figure is drawn.
    span = "node => { const [from, to] = node.layout.xaxis.range.map(Date.parse); return to - from; }"
    lab.page.wait_for_function(f"node => ({span})(node) < 40_000", arg=figure.element_handle())
    assert figure.evaluate(span) > 20_000
    job.get_by_role("button", name="Newest").click()
    expect(ranges).to_have_value("60")
    ranges.select_option("whole run")
    roles = job.locator("input[name='roles']")
    roles.fill("tp=2, dp=8")
    roles.press("Enter")
    expect(job).to_contain_text("16 ranks · tp=2 \u00d7 dp=8")
    job.get_by_role("button", name="Forget the layout").click()
    expect(job).to_contain_text("16 ranks · pp=4 \u00d7 dp=4")
    roles.fill("pp=1 & dp=0")
    roles.press("Enter")
    # The rows of other ranks are dimmed, above the one and below it.
    expect(job.locator("[data-figure='heat'] .shapelayer path")).to_have_count(2)
    job.get_by_role("tab", name="Ranks").click()
    expect(job.locator("tr[data-rank]")).to_have_count(16)
    chosen = job.locator("tr[data-rank][aria-selected='true']")
    expect(chosen).to_have_count(1)
    assert chosen.evaluate_all("all => all.map(each => each.dataset.rank)") == _CHOSEN
    job.get_by_role("tab", name="Topology").click()
    lit = job.locator("[data-unit='gpu'][data-state='chosen']")
    expect(lit).to_have_count(1)
    assert lit.first.get_attribute("data-name") == "GPU-1-0"
    frame = job.locator(".jp-Gipfel-topology-frame rect").first
    # Without its style sheet, SVG is filled with black.
    assert frame.evaluate("node => getComputedStyle(node).fill") != "rgb(0, 0, 0)"
    screenshot(lab.page, "95-job-topology-light")
    job.get_by_role("tab", name="Network").click()
    peer = job.get_by_role("row", name="203.0.113.5")
    expect(peer).to_contain_text("python (rank 3)")
    expect(peer).to_contain_text("3.2 MB")
    expect(job.get_by_text("1 port open on all interfaces")).to_be_visible()
    expect(job.get_by_text("Gate: 1 destination refused · 1 allowed")).to_be_visible()
    refused = job.get_by_role("row", name="▲ refused")
    expect(refused).to_contain_text("files.example:22/tcp2")
    expect(refused).to_contain_text("not on the allow list")
    screenshot(lab.page, "95-job-network-light")
    lab.panel.get_by_role("tab", name="Network").click()
    section = lab.panel.locator("[data-section='network']")
    expect(section.get_by_role("row", name="203.0.113.5")).to_contain_text("3.2 MB")
    expect(section.get_by_text("refused 2 times: files.example:22")).to_be_visible()
    screenshot(lab.page, "95-panel-network-light")
    section.get_by_role("button", name="All connections on the job page").click()
    expect(job.get_by_role("tab", name="Network", selected=True)).to_be_visible()
    job.get_by_role("tab", name="Metrics").click()
    expect(job.locator("[data-figure='roofline'] .scatterlayer .point").first).to_be_visible()
    drawn = [trace.get("name", "") for trace in traces(job.locator("[data-figure='bands']"))]
    assert {name for name in drawn if name.startswith("rank ")} == {"rank 4 · nid001 0"}
    screenshot(lab.page, "95-job-metrics-light")
    job.get_by_role("tab", name="Communication").click()
    expect(job.locator("[data-figure='communication'] .heatmaplayer image")).to_be_visible()
    expect(job.locator(".jp-Gipfel-job-communication h3").first).to_contain_text("The ranks sent each other")
    expect(job.get_by_role("row", name="all_reduce 67.1 MB")).to_contain_text("8 ms")
    screenshot(lab.page, "95-job-communication-light")
    job.get_by_role("tab", name="Events").click()
    expect(job.get_by_role("tab", selected=True)).to_contain_text("Events")
    lab.page.wait_for_function("decodeURIComponent(location.search).includes('tab=events')")
    lab.page.reload()
    expect(job.get_by_role("tab", selected=True)).to_contain_text("Events")
    expect(job.locator("input[name='roles']")).to_have_value("pp=1 & dp=0")
    shared = parse_qs(urlsplit(lab.page.url).query)["gipfel-job"][0]
    assert not lab.errors
    lab.page.close()
    other = new_page()
    other.goto(f"{server.url}&gipfel-job={quote(shared.replace('tab=events', 'tab=topology'))}")
    expect(other.locator("#gipfel-job [data-unit='gpu'][data-state='chosen']")).to_have_count(1)
    expect(other.locator("#gipfel-job input[name='roles']")).to_have_value("pp=1 & dp=0")
    other.close()


_TABS = ("Overview", "Ranks", "Topology", "Communication", "Network", "Checkpoints", "Security")
_TABS += ("Metrics", "Events")


def test_no_tab_has_serious_findings_and_the_panel_covers_none_in_a_narrow_window(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    lab = LabPage(new_page())
    lab.page.goto(f"{server.url}&gipfel-job={quote('tab=overview&run=made-1')}")
    job = lab.page.locator("#gipfel-job")
    expect(job.locator(".heatmaplayer image").first).to_be_visible()
    lab.open_panel()
    # Each narrowing took more of the page, which a reload kept.
    for width in (700, 1400, 700):
        lab.page.set_viewport_size({"width": width, "height": 900})
        lab.page.wait_for_timeout(1000)
        lab.page.reload()
        expect(job).to_be_visible()
        expect(lab.panel).to_be_visible()
        lab.page.wait_for_function("document.querySelector('#gipfel-job').clientWidth >= 200")
    lab.page.set_viewport_size({"width": 1400, "height": 900})
    for theme, width in (("Light", 1400), ("Dark", 320)):
        lab.choose_theme(f"JupyterLab {theme}")
        lab.page.set_viewport_size({"width": width, "height": 900})
        for tab in _TABS:
            job.get_by_role("tab", name=tab).click()
            expect(job.get_by_role("tab", selected=True)).to_contain_text(tab)
            lab.page.wait_for_timeout(1000)
            assert serious_findings(lab.page, "#gipfel-job") == [], (theme, width, tab)
        screenshot(lab.page, f"97-job-{theme.lower()}-{width}")
    # Who asks for the panel gets it, in the main area where there is no room beside it.
    lab.page.locator(".jp-SideBar .lm-TabBar-tab[data-id='gipfel-panel']").click()
    expect(lab.page.locator("#gipfel-wide-panel")).to_be_visible()
    assert not lab.errors
    lab.page.close()


def test_every_width_and_theme_shows_the_page_whole(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    lab = LabPage(new_page())
    lab.page.goto(f"{server.url}&gipfel-job={quote('tab=overview&run=made-1')}")
    job = lab.page.locator("#gipfel-job")
    expect(job.locator(".heatmaplayer image").first).to_be_visible()
    lab.close_left_sidebar()
    shown = {"Overview": "[data-figure='heat'] .heatmaplayer image", "Topology": "[data-unit='gpu']"}
    for theme in ("Light", "Dark"):
        lab.page.set_viewport_size({"width": 1400, "height": 900})
        lab.choose_theme(f"JupyterLab {theme}")
        for width in (320, 1400, 2560):
            lab.page.set_viewport_size({"width": width, "height": 900})
            for tab, element in shown.items():
                job.get_by_role("tab", name=tab).click()
                expect(job.locator(element).first).to_be_visible()
                lab.page.wait_for_timeout(400)
                content = job.locator(".jp-Gipfel-job-content")
                wide = content.evaluate("node => node.scrollWidth - node.clientWidth")
                assert wide <= 1, (theme, width, tab, wide)
                # Figures are drawn for the page's width, and none is cut off.
                drawn = job.locator("[data-figure] .main-svg").evaluate_all(
                    "all => all.map(each => each.getBoundingClientRect().right)"
                )
                assert all(right <= width + 1 for right in drawn), (theme, width, tab, drawn)
                screenshot(lab.page, f"97-job-{tab.lower()}-{theme.lower()}-{width}")
    assert not lab.errors
    lab.page.close()


def test_one_cursor_goes_through_all_plots_and_what_is_seen_is_in_the_url(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    lab = LabPage(new_page())
    lab.page.goto(f"{server.url}&reset")
    lab.wait_until_ready()
    tile = lab.page.locator(".jp-LauncherCard", has_text="Job").first
    tile.click()
    job = lab.page.locator("#gipfel-job")
    expect(job.get_by_role("tab", name="Overview", selected=True)).to_be_visible()
    lab.page.goto(f"{server.url}&gipfel-job={quote('tab=overview&run=made-1')}")
    bands, heat = (job.locator(f"[data-figure='{name}']") for name in ("bands", "heat"))
    expect(heat.locator(".heatmaplayer image")).to_be_visible()
    cursors = job.locator(".jp-Gipfel-cursor:not([hidden])")
    expect(cursors).to_have_count(0)
    box = bands.bounding_box()
    assert box is not None
    lab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(cursors.nth(1)).to_be_attached()
    places = cursors.evaluate_all("all => all.map(each => each.getBoundingClientRect().left)")
    lab.page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2)
    lab.page.wait_for_timeout(100)
    moved = cursors.evaluate_all("all => all.map(each => each.getBoundingClientRect().left)")
    assert len(moved) == len(places) >= 2
    assert all(after > before for before, after in zip(places, moved, strict=True))
    job.locator("select[name='metric']").select_option("POWER_USAGE")
    job.locator("select[name='order']").select_option("node")
    job.get_by_role("tab", name="Ranks").click()
    job.get_by_role("button", name="Node").click()
    job.get_by_role("tab", name="Metrics").click()
    job.get_by_role("group", name="Metrics of the GPUs").get_by_label("SM active", exact=True).uncheck()
    lab.page.wait_for_function("decodeURIComponent(location.search).includes('sort=node')")
    lab.page.wait_for_function("decodeURIComponent(location.search).includes('band=DRAM_ACTIVE')")
    lab.page.reload()
    group = job.get_by_role("group", name="Metrics of the GPUs")
    expect(group.get_by_label("SM active", exact=True)).not_to_be_checked()
    job.get_by_role("tab", name="Ranks").click()
    expect(job.locator("th[aria-sort='ascending']")).to_contain_text("Node")
    job.get_by_role("tab", name="Overview").click()
    expect(job.locator("select[name='metric']")).to_have_value("POWER_USAGE")
    expect(job.locator("select[name='order']")).to_have_value("node")
    job.get_by_text("Earlier runs of the same script").click()
    expect(job.locator("[data-part='earlier']")).to_contain_text("the program of this run is not recorded")
    job.get_by_role("tab", name="Topology").click()
    roles = job.locator("input[name='roles']")
    roles.fill("pp=1 & dp=2")
    roles.press("Enter")
    nics = job.locator("[data-figure='nics']")
    expect(nics.locator(".main-svg").first).to_be_visible()
    lab.page.wait_for_function(
        "document.querySelector(\"[data-figure='nics']\").data.some(each => each.name.startsWith('cxi'))"
    )
    assert {each["name"] for each in traces(nics) if "@" in each["name"]} == {"cxi2@nid001 · rank 6"}
    nics.scroll_into_view_if_needed()
    screenshot(lab.page, "97-job-nics")
    assert not lab.errors
    # The report of a run links to its page.
    written = server.folder / "made-1.html"
    base = server.url.partition("lab")[0]
    environment = {**os.environ, "JUPYTERHUB_SERVICE_PREFIX": "/", "JUPYTERHUB_PUBLIC_URL": base}
    argv = [sys.executable, "-m", "gipfel_extension.cli", "report", str(server.folder / "runs" / "made-1")]
    subprocess.run([*argv, "-o", str(written)], env=environment, check=True)
    lab.page.goto(written.as_uri())
    lab.page.get_by_role("link", name="All ranks").click()
    expect(job.get_by_role("tab", name="Overview", selected=True)).to_be_visible()
    expect(job).to_contain_text("16 ranks")
    lab.page.close()


def test_stacks_of_a_selected_rank_cost_first_and_are_linked_when_done(
    server: LabServer, new_page: Callable[[], Page], screenshot: Callable[[Page, str], Path]
) -> None:
    with running_launch(server.folder / "runs" / "live-1", server.folder) as started:
        progress = started.folder / "progress"
        lab = LabPage(new_page())
        lab.page.goto(f"{server.url}&gipfel-job={quote('tab=ranks&run=live-1')}")
        job = lab.page.locator("#gipfel-job")
        expect(job.locator("tr[data-rank]")).to_have_count(2, timeout=60_000)
        assert len(list(progress.iterdir())) == 2
        job.locator("tr[data-rank='1'] th button").click()
        button = job.locator("button[data-look='stacks']")
        expect(job.get_by_text("Look into 1 selected rank:")).to_be_visible()
        button.focus()
        lab.page.keyboard.press("Enter")
        dialog = lab.page.locator(".jp-Dialog")
        expect(dialog).to_contain_text("1 rank is stopped for a few milliseconds")
        screenshot(lab.page, "96-job-look-dialog")
        lab.page.keyboard.press("Enter")
        done = job.locator("li[data-look='stacks'][data-done='true']")
        expect(done).to_be_visible(timeout=30_000)
        expect(job.locator("[data-depth='ranks']")).to_contain_text("with the parallel layout")
        screenshot(lab.page, "96-job-looks")
        with lab.page.expect_popup() as opened:
            done.get_by_role("link", name="rank 1").click()
        expect(opened.value.locator("body")).to_contain_text("wait_for_data")
        assert not lab.errors
        lab.page.close()
