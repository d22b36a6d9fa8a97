"""The panel's saturation of 64 GPUs in a browser: its content and its response time."""

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_page import LabPage, moves
from lab_server import LabServer
from playwright.sync_api import Locator, Page, expect
from test_hub_pages import serious_findings

pytestmark = pytest.mark.browser

_SOON_MS = 60_000


@pytest.fixture(scope="module")
def server() -> Iterator[LabServer]:
    """A lab with 64 simulated GPUs and the host."""
    with LabServer("host", "synthetic:training:64") as server:
        yield server


@pytest.fixture(scope="module")
def lab(server: LabServer, new_page: Callable[[], Page]) -> Iterator[LabPage]:
    """Its page, the panel open."""
    page = new_page()
    lab = LabPage(page)
    page.goto(server.url)
    lab.wait_until_ready()
    lab.open_panel()
    expect(plot(lab, "heat").locator(".heatmaplayer image")).to_be_visible(timeout=_SOON_MS)
    yield lab
    page.close()


def plot(lab: LabPage, name: str) -> Locator:
    return lab.panel.locator(f"[data-figure^='{name}']").first


def span(lab: LabPage, name: str = "job") -> list[object]:
    read: list[object] = plot(lab, name).evaluate("node => [...node.layout.xaxis.range]")
    return read


def drag(lab: LabPage, figure: Locator) -> None:
    """Pull a frame across the newest part of a plot, slowly enough for new samples to come in meanwhile."""
    figure.locator(".nsewdrag").first.hover()
    box = figure.locator(".nsewdrag").first.bounding_box()
    assert box
    across = [box["x"] + box["width"] * part for part in (0.6, 0.95)]
    up = box["y"] + box["height"] / 2
    lab.page.mouse.move(across[0], up)
    lab.page.mouse.down()
    lab.page.mouse.move(across[1], up, steps=5)
    lab.page.wait_for_timeout(2500)
    lab.page.mouse.up()


def test_score_and_losses_add_up_and_name_what_binds(lab, screenshot):
    expect(lab.panel.locator(".jp-Gipfel-lost")).to_contain_text("points lost: ", timeout=_SOON_MS)
    # Read at once: the next score comes any second.
    line, points = lab.panel.evaluate(
        "node => ['.jp-Gipfel-lost', '.jp-Gipfel-points'].map(each => node.querySelector(each).innerText)"
    )
    points = int(points)
    lost = [int(each) for each in re.findall(r"\w\xa0(\d+)", line)]
    assert points + sum(lost) == 100
    expect(lab.panel.get_by_role("status").first).to_contain_text("simulated")
    lab.panel.get_by_text("Loss breakdown").click()
    expect(lab.panel.locator(".jp-Gipfel-steps li")).to_have_count(len(lost) + 1)
    screenshot(lab.page, "20-saturation-64")


def test_the_heat_map_has_a_row_per_gpu_and_another_metric_on_request(lab):
    heat = plot(lab, "heat")
    assert heat.evaluate("node => node.data[0].z.length") == 64
    lab.panel.get_by_label("Metric of the heat map").select_option("POWER_USAGE")
    lab.page.wait_for_function(
        "document.querySelector('[data-figure=heat]').data[0].uid === 'heat-POWER_USAGE'", timeout=_SOON_MS
    )
    lab.panel.get_by_label("Metric of the heat map").select_option("SM_ACTIVE")


def test_a_row_that_is_clicked_shows_its_gpu_and_only_rows_in_view_are_drawn(lab):
    heat = plot(lab, "heat")
    heat.scroll_into_view_if_needed()
    box = heat.locator(".nsewdrag").bounding_box()
    assert box
    place = (box["x"] + box["width"] * 0.9, box["y"] + box["height"] * (10.5 / 64))
    # plotly.js takes a click for the cell that it said the mouse is over.
    lab.page.mouse.move(place[0] - 5, place[1])
    lab.page.mouse.move(*place, steps=3)
    expect(heat.locator(".hoverlayer .hovertext")).to_be_visible()
    lab.page.mouse.click(*place)
    shown = lab.panel.locator("[data-gpu$='-10']")
    expect(shown).to_be_visible()
    shown.scroll_into_view_if_needed()
    expect(shown.locator(".js-plotly-plot, .main-svg").first).to_be_visible(timeout=_SOON_MS)
    lab.panel.get_by_label("all 64").check()
    expect(lab.panel.locator("[data-gpu]")).to_have_count(64)
    # The check box may be the last thing in view.
    lab.panel.locator("[data-gpu]").first.scroll_into_view_if_needed()
    drawn = lab.panel.locator("[data-gpu] [data-figure]")
    expect(drawn.first).to_be_visible(timeout=_SOON_MS)
    # Others would follow by now.
    lab.page.wait_for_timeout(500)
    assert drawn.count() <= 8
    lab.panel.get_by_label("all 64").uncheck()


def test_zooming_reads_the_stretch_and_leads_back_to_live(lab, screenshot):
    job = plot(lab, "job")
    job.scroll_into_view_if_needed()
    assert moves(job)
    before = span(lab)
    drag(lab, job)
    expect(lab.panel.get_by_text("back to live")).to_be_visible()
    expect(lab.panel.locator(".jp-Gipfel-status")).to_contain_text("history")
    expect(lab.panel.locator(".jp-Gipfel-saturation")).to_have_attribute(
        "aria-busy", "false", timeout=_SOON_MS
    )
    assert span(lab) != before
    # One clock: the axis and the words above it are of the page's zone, and what was zoomed to has samples.
    lab.page.wait_for_function(
        """() => {
          const [first, last, zone] = document.querySelector('.jp-Gipfel-stretch').innerText
            .match(/(\\d\\d:\\d\\d:\\d\\d) \u2013 (?:\\S+ )?(\\d\\d:\\d\\d:\\d\\d) (\\S+)/).slice(1);
          const { layout, data } = document.querySelector('[data-figure=job]');
          if (typeof layout.xaxis.range[0] !== 'string') {
            return false;
          }
          const day = layout.xaxis.range[0].slice(0, 10);
          // By the time of day: the day may end while the test runs.
          const off = (said, end) =>
            (Date.parse(`${day}T${said}`) - Date.parse(layout.xaxis.range[end])) % 86_400_000;
          const near = [first, last].every((said, end) => Math.abs(off(said, end)) < 3000);
          const ago = Date.now() - Date.parse(layout.xaxis.range[0]);
          return near && layout.xaxis.hoverformat.endsWith(` ${zone}`) && /^P[DS]T$/.test(zone)
            && ago < 300_000 && data[0].x.length > 1;
        }""",
        timeout=_SOON_MS,
    )
    screenshot(lab.page, "21-saturation-zoomed")
    later = span(lab)
    lab.panel.get_by_role("button", name="Later").click()
    lab.page.wait_for_function(
        "before => document.querySelector('[data-figure=job]').layout.xaxis.range[0] !== before",
        arg=later[0],
        timeout=_SOON_MS,
    )
    lab.panel.get_by_text("back to live").click()
    expect(lab.panel.locator(".jp-Gipfel-status")).to_contain_text("live")
    assert moves(plot(lab, "job"))


def test_it_stands_still_zooms_and_goes_on_by_keyboard(lab, screenshot):
    pause = lab.panel.get_by_role("button", name="Pause")
    pause.focus()
    lab.page.keyboard.press("Enter")
    expect(lab.panel.locator(".jp-Gipfel-status")).to_contain_text("paused")
    lab.panel.get_by_role("button", name="Resume").press("Enter")
    status = lab.panel.locator(".jp-Gipfel-status")
    expect(status).to_contain_text("live", timeout=_SOON_MS)
    job = plot(lab, "job")
    assert moves(job)
    for back in ("0", "Escape", "double click"):
        job.focus()
        lab.page.keyboard.press("+")
        expect(status).to_contain_text("history", timeout=_SOON_MS)
        screenshot(lab.page, "23-saturation-keys")
        if back == "double click":
            job.locator(".nsewdrag").first.dblclick()
        else:
            lab.page.keyboard.press(back)
        expect(status).to_contain_text("live", timeout=_SOON_MS)
    assert moves(job)


def test_one_cursor_crosses_the_plots_and_a_table_says_the_same(lab, screenshot):
    job, heat = plot(lab, "job"), plot(lab, "heat")
    table = job.locator("xpath=../..").get_by_text("Table", exact=True).first
    table.focus()
    lab.page.keyboard.press("Enter")
    values = lab.panel.get_by_role("table", name=job.get_attribute("aria-label"), exact=True)
    row = values.get_by_role("row").nth(1)
    expect(row.get_by_role("rowheader")).not_to_be_empty()
    least, mean, greatest = (float(row.get_by_role("cell").nth(place).inner_text()) for place in (1, 0, 2))
    assert least <= mean <= greatest
    # The heat map is drawn every few seconds only.
    expect(heat.locator(".main-svg").first).to_be_visible(timeout=_SOON_MS)
    cursors = [figure.locator("xpath=..").locator(".jp-Gipfel-cursor") for figure in (job, heat)]
    for right in range(40, 90, 10):
        # A figure that is drawn meanwhile shows no cursor until the mouse moves.
        job.locator(".nsewdrag").first.hover(position={"x": right, "y": 20})
        lab.page.wait_for_timeout(500)
        if all(cursor.is_visible() for cursor in cursors):
            break
    for cursor in cursors:
        expect(cursor).not_to_have_attribute("hidden", "")
    screenshot(lab.page, "26-saturation-cursor")
    lab.page.mouse.move(5, 5)
    expect(heat.locator("xpath=..").locator(".jp-Gipfel-cursor")).to_have_attribute("hidden", "")
    table.press("Enter")


def test_the_whole_run_and_two_times_are_shown(lab, screenshot):
    shown = lab.panel.get_by_label("Time range")
    shown.select_option("whole run")
    status = lab.panel.locator(".jp-Gipfel-status")
    expect(status).to_contain_text("history", timeout=_SOON_MS)
    last = "document.querySelector('[data-figure=job]').layout.xaxis.range[1]"
    before = lab.page.evaluate(last)
    lab.page.wait_for_function(f"before => {last} > before", arg=before, timeout=_SOON_MS)
    shown.select_option("times")
    fields = lab.panel.locator(".jp-Gipfel-times input")
    expect(fields).to_have_count(2)
    start = fields.nth(0).input_value()
    fields.nth(1).fill(f"{start[:17]}{(int(start[17:19] or 0) + 5) % 60:02}")
    screenshot(lab.page, "27-saturation-times")
    fields.nth(1).fill(start)
    fields.nth(1).press("Enter")
    expect(lab.panel.get_by_text("must be before")).to_be_visible()
    for minutes in (15, 10):
        shown.select_option(f"{minutes} min")
        expect(status).to_contain_text("live", timeout=_SOON_MS)
        lab.page.wait_for_function(
            "window_s => document.querySelector('[data-figure=job]').layout.meta.window_s === window_s",
            arg=60 * minutes,
            timeout=_SOON_MS,
        )


def test_advice_shows_its_evidence_on_the_plot(lab):
    show = lab.panel.locator(".jp-Gipfel-advice button").first
    expect(show).to_be_visible(timeout=_SOON_MS)
    show.click()
    expect(lab.panel.get_by_text("back to live")).to_be_visible()
    lab.page.wait_for_function(
        "document.querySelector('[data-figure=job]').layout.shapes?.some(shape => shape.type === 'rect')",
        timeout=_SOON_MS,
    )
    lab.panel.get_by_text("back to live").click()


def test_what_is_shown_can_be_taken_along(lab):
    lab.panel.get_by_label("Download the current view").click()
    with lab.page.expect_download() as waiting:
        lab.panel.get_by_role("link", name="samples as CSV").click()
    head, *rows = csv.reader(Path(waiting.value.path()).read_text().splitlines())
    assert head[:4] == ["device", "node", "name", "time_ns"]
    assert len(rows) > 63


def test_history_survives_a_reload(lab):
    lab.page.reload()
    lab.wait_until_ready()
    if not lab.panel.is_visible():
        lab.open_panel()
    expect(plot(lab, "heat").locator(".heatmaplayer image")).to_be_visible(timeout=_SOON_MS)
    columns = plot(lab, "heat").evaluate("node => node.data[0].z[0].filter(cell => cell !== null).length")
    assert columns > 5


@pytest.mark.parametrize("width", [640, 1400])
def test_it_is_readable_in_the_dark_and_when_narrow(lab, screenshot, width):
    if width == 640:
        lab.choose_theme("JupyterLab Dark")
    lab.page.set_viewport_size({"width": width, "height": 1000})
    browser = lab.page.locator("#jp-left-stack")
    if width == 640:
        # The file browser makes room; opened again beside the panel, nothing leaves the window all the same.
        expect(browser).to_be_hidden()
        lab.page.get_by_role("tab", name="File Browser").click()
    expect(browser).to_be_visible()
    lab.page.wait_for_function(
        """() => {
          const [panel, bar] = ['#gipfel-panel', '.jp-SideBar.jp-mod-right']
            .map(each => document.querySelector(each).getBoundingClientRect().right);
          return panel < bar && bar <= innerWidth;
        }""",
        timeout=_SOON_MS,
    )
    lab.page.wait_for_timeout(1500)
    screenshot(lab.page, f"22-saturation-dark-{width}")
    overflow = lab.panel.evaluate("node => node.scrollWidth - node.clientWidth")
    assert overflow <= 0
    assert serious_findings(lab.page, "#gipfel-panel") == []
    ink = plot(lab, "job").evaluate("node => node.layout.font.color")
    assert ink != plot(lab, "job").evaluate("node => getComputedStyle(node).backgroundColor")
    beyond = lab.panel.evaluate(
        """panel => [...panel.querySelectorAll('button, select, summary, a, input, p, li, h2, h3')]
             .filter(each => each.checkVisibility() && !each.closest('.jp-Gipfel-scroll'))
             .filter(each => each.getBoundingClientRect().right > panel.getBoundingClientRect().right)
             .map(each => each.outerHTML)"""
    )
    assert beyond == []


def test_the_controls_are_buttons_in_one_row_and_tell_of_themselves(lab):
    toolbar = lab.panel.get_by_role("toolbar", name="View controls")
    centres = toolbar.evaluate(
        """node => [...node.children].map(each => each.getBoundingClientRect())
             .map(box => Math.round((box.top + box.bottom) / 2))"""
    )
    assert len(centres) == 5
    assert max(centres) - min(centres) <= 2
    compare = toolbar.get_by_role("button", name="Compare")
    assert compare.evaluate("node => getComputedStyle(node).borderTopWidth") == "1px"
    compare.press("Enter")
    expect(compare).to_have_attribute("aria-pressed", "true")
    compare.press("Enter")
    expect(compare).to_have_attribute("aria-pressed", "false")


def test_the_panel_opens_wide_beside_a_gauge_and_both_are_restored(lab, screenshot):
    lab.page.set_viewport_size({"width": 1400, "height": 1000})
    lab.panel.get_by_role("button", name="Open wide").click()
    expect(lab.panel).to_be_hidden()
    wide = lab.page.locator("#gipfel-wide-panel")
    job = wide.locator("[data-figure=job]")
    assert moves(job)
    # Figures are in two columns.
    boxes = [wide.locator(f"[data-figure={name}]").bounding_box() for name in ("job", "heat")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    wide.get_by_role("button", name="temperature", exact=True).click()
    gauge = lab.page.locator("#gipfel-gauge-GPU_TEMP")
    assert moves(gauge.locator("[data-figure]"))
    # 64 GPUs are one line of means; one socket serves all views.
    assert gauge.locator("[data-figure]").evaluate("node => node.data.filter(each => each.name).length") == 1
    screenshot(lab.page, "24-saturation-gauge")
    assert serious_findings(lab.page, "#jp-main-dock-panel") == []
    lab.page.wait_for_timeout(1500)
    lab.page.reload()
    for name, view in (("GPU temperature", gauge), ("Gipfel", wide)):
        lab.page.locator(".lm-TabBar-tab", has_text=re.compile(f"^{name}$")).click(timeout=_SOON_MS)
        assert moves(view.locator("[data-figure]").first)
    screenshot(lab.page, "25-saturation-wide")


def test_a_gauge_is_dragged_to_its_place_in_the_main_area(lab, screenshot):
    wide = lab.page.locator("#gipfel-wide-panel")
    button = wide.get_by_role("button", name="power", exact=True)
    button.scroll_into_view_if_needed()
    start, area = button.bounding_box(), wide.bounding_box()
    lab.page.mouse.move(start["x"] + 10, start["y"] + 10)
    lab.page.mouse.down()
    lab.page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] - 40, steps=8)
    expect(lab.page.locator(".jp-Gipfel-dragged")).to_have_text("GPU power")
    lab.page.mouse.up()
    gauge = lab.page.locator("#gipfel-gauge-POWER_USAGE")
    assert moves(gauge.locator("[data-figure]"))
    # Below the panel, where it was dropped.
    assert gauge.bounding_box()["y"] > wide.bounding_box()["y"] + wide.bounding_box()["height"] - 1
    screenshot(lab.page, "26-dragged-gauge")
    # A click opens the same gauge, not another one.
    button.click()
    expect(gauge).to_have_count(1)


def test_plotly_comes_compressed_and_is_kept_by_the_browser(lab):
    read = """performance.getEntriesByType('resource')
      .filter(each => each.name.includes('@gipfel') && each.decodedBodySize > 1e6)
      .map(each => [each.name, each.transferSize, each.encodedBodySize, each.decodedBodySize])"""
    # One, of the parts that the panel draws with.
    ((url, _, sent, decoded),) = lab.page.evaluate(read)
    assert decoded < 1.6e6
    assert sent < 0.4 * decoded
    headers = lab.page.evaluate(
        "async url => Object.fromEntries((await fetch(url, {cache: 'reload'})).headers)", url
    )
    assert headers["content-encoding"] == "gzip"
    assert "max-age=" in headers["cache-control"]
    # A reload takes it from the browser's cache: no byte of it is sent.
    lab.page.reload()
    expect(lab.page.locator("[data-figure] .main-svg:visible").first).to_be_visible(timeout=_SOON_MS)
    ((again, transferred, *_),) = lab.page.evaluate(read)
    assert (again, transferred) == (url, 0)


def test_the_page_threw_nothing(lab):
    assert not lab.errors
