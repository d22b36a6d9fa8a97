"""The browser half of the live view in Chromium, with a fake kernel and the real plotly.js."""

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import plotly
import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from gipfel_extension.telemetry.figures.activity import figure_delta, saturation_figure
from gipfel_extension.telemetry.figures.image import static_image
from gipfel_extension.telemetry.figures.saved import CLOCK_SCRIPT
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable
from gipfel_widgets import Saturation
from gipfel_widgets.saturation import document_and_plots

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium on this machine"),
]

_PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
_START_NS = 1_800_000_000 * 10**9
#: Far from UTC, so that a time that is taken for another zone's is seen.
_ZONE = "America/Los_Angeles"
_GPUS = [Device(f"GPU-{n}:x/{n}", "gpu", "NVIDIA GH200", n, simulated=True) for n in (0, 1)]

_PAGE = """
<!doctype html><meta charset="utf-8">{plotly}<link rel="stylesheet" href="saturation.css">
<style>
  :root { --jp-layout-color1: #fff; --jp-ui-font-color1: #222; --jp-border-color2: #ddd; }
  .dark { --jp-layout-color1: rgb(17 17 17); --jp-ui-font-color1: #eee; --jp-border-color2: #444; }
</style>
<body data-jp-theme-light="true"><div id="cell" style="width:700px"></div>
<script type="module">
  import view from './saturation.js';
  const listeners = {};
  const state = await (await fetch('state.json')).json();
  globalThis.asked = [];
  globalThis.emit = (name, ...given) => (listeners[name] ?? []).forEach(each => each(...given));
  globalThis.change = (name, value) => { state[name] = value; emit(`change:${name}`); };
  const model = {
    get: name => state[name],
    on: (name, listener) => (listeners[name] ??= []).push(listener),
    off: (name, listener) => { listeners[name] = (listeners[name] ?? []).filter(each => each !== listener); },
    send: message => asked.push(message)
  };
  if (globalThis.Plotly) {
    globalThis[Symbol.for('gipfel.plotly')] = async () => globalThis.Plotly;
  }
  globalThis.listening = () => Object.values(listeners).flat().length;
  globalThis.leave = view.render({ model, el: document.querySelector('#cell') });
</script>
"""


def _samples(first: int, count: int) -> list[Sample]:
    values = {"GPU_UTIL": 1.0, "SM_ACTIVE": 0.5, "PIPE_TENSOR_ACTIVE": 0.2, "DRAM_ACTIVE": 0.3}
    return [
        Sample(_START_NS + n * 10**9, n, gpu.uuid, values)
        for n in range(first, first + count)
        for gpu in _GPUS
    ]


def _figure(count: int) -> dict[str, Any]:
    table = SampleTable.from_samples(_samples(0, count), _GPUS, source="synthetic:training", interval=1.0)
    return saturation_figure(table, window_s=60)


_STATUS = {
    "state": "live",
    "source": "synthetic:training",
    "simulated": True,
    "gpus": 2,
    "interval": 1.0,
    "last_ns": _START_NS,
    "message": "2 GPUs, a sample every 1 s.",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as programs:
        found = programs.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a cell with a view; nothing leaves the browser."""
    pages: list[Page] = []
    errors: list[str] = []

    def show(*, offered: bool = True, status: dict[str, Any] | None = None, zone: str = _ZONE) -> Page:
        state = {
            "figure": _figure(20),
            "status": {**_STATUS, **(status or {})},
            "dark_colours": {"SM_ACTIVE": "#56b4e9"},
        }
        plotly_tag = '<script src="plotly.js"></script>' if offered else ""
        answers = {
            "page.html": ("text/html", _PAGE.replace("{plotly}", plotly_tag).lstrip()),
            "plotly.js": ("text/javascript", _PLOTLY.read_text()),
            "saturation.js": ("text/javascript", str(Saturation._esm)),
            "saturation.css": ("text/css", str(Saturation._css)),
            "clock.js": ("text/javascript", CLOCK_SCRIPT.read_text()),
            "state.json": ("application/json", json.dumps(state)),
        }

        def answer(route: Route) -> None:
            kind, body = answers.get(route.request.url.rpartition("/")[2], ("text/plain", ""))
            route.fulfill(body=body, content_type=kind)

        page = browser.new_page(viewport={"width": 760, "height": 600}, timezone_id=zone)
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.route("**/*", answer)
        page.goto("http://cell.invalid/page.html")
        page.wait_for_function("globalThis.leave !== undefined")
        if offered:
            page.wait_for_selector("#cell .js-plotly-plot .scatterlayer path", state="attached")
        return page

    yield show
    for page in pages:
        page.close()
    assert errors == []


def _plot(page: Page, what: str) -> Any:
    return page.evaluate(f"document.querySelector('.js-plotly-plot').{what}")


def test_it_draws_says_live_and_marks_simulated(open_page):
    page = open_page()
    words = page.locator(".jp-Gipfel-status").inner_text()
    assert "simulated" in words
    assert "live every 1 s" in words
    assert "●" in words
    assert _plot(page, "data.map(trace => trace.x.length)") == [20] * 8
    assert page.evaluate("asked") == [{"type": "figure"}]


def test_points_extend_the_traces_and_leave_on_the_left(open_page):
    page = open_page()
    page.evaluate("traces => emit('msg:custom', {type: 'samples', traces})", figure_delta(_samples(20, 70)))
    page.wait_for_function(f"document.querySelector('.js-plotly-plot').data[0].x.at(-1) === '{_text(89)}'")
    assert _plot(page, "data.map(trace => trace.x.length)") == [61] * 8
    assert page.evaluate("new Set(document.querySelector('.js-plotly-plot').layout.xaxis.range).size") == 2


def test_what_a_page_missed_is_a_gap_and_no_line(open_page):
    page = open_page()
    page.evaluate("traces => emit('msg:custom', {type: 'samples', traces})", figure_delta(_samples(45, 3)))
    page.wait_for_function(f"document.querySelector('.js-plotly-plot').data[0].x.at(-1) === '{_text(47)}'")
    x, y = _plot(page, "data[0].x.slice(-5)"), _plot(page, "data[0].y.slice(-5)")
    assert x == [_text(second) for second in (19, 20, 45, 46, 47)]
    assert [value is None for value in y] == [False, True, False, False, False]


def test_cursor_keys_and_table_help_to_read_a_cell(open_page):
    page = open_page()
    plot = page.locator("[data-figure=activity]")
    cursor = page.locator(".jp-Gipfel-cursor")
    # Its style is JupyterLab's, whose extension brings plotly.js too.
    assert cursor.evaluate("node => node.hidden")
    plot.hover()
    assert not cursor.evaluate("node => node.hidden")
    read = "layout.xaxis.range.map(Date.parse).reduce((from, to) => to - from) / 1000"
    assert _plot(page, read) == 60
    plot.focus()
    page.keyboard.press("+")
    page.wait_for_function(f"document.querySelector('.js-plotly-plot').{read} === 30")
    page.keyboard.press("0")
    page.wait_for_function(f"document.querySelector('.js-plotly-plot').{read} === 60")
    page.locator(".jp-Gipfel-values > summary").first.click()
    assert "SM active" in page.locator(".jp-Gipfel-values table").inner_text()


def _pull(page: Page, figure: str) -> tuple[float, float]:
    """Begin to pull a frame across a plot; where the axis stands by then."""
    box = page.locator(f"{figure} .nsewdrag").first.bounding_box()
    assert box
    across = [box["x"] + box["width"] * part for part in (0.3, 0.7)]
    up = box["y"] + box["height"] / 2
    page.mouse.move(across[0], up)
    page.mouse.down()
    page.mouse.move(across[1], up, steps=5)
    page.wait_for_selector(f"{figure} .zoomlayer path", state="attached")
    read = f"document.querySelector('{figure}').layout.xaxis.range.map(Date.parse)"
    first, last = page.evaluate(read)
    return first, last


def _settle(page: Page) -> None:
    """Give a page the time in which it would draw what it has been told."""
    page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
    )


def test_a_frame_that_is_pulled_while_samples_come_in_is_kept(open_page):
    page = open_page()
    send = "traces => emit('msg:custom', {type: 'samples', traces})"
    page.evaluate(send, figure_delta(_samples(20, 5)))
    page.wait_for_function(f"document.querySelector('.js-plotly-plot').data[0].x.at(-1) === '{_text(24)}'")
    first, last = _pull(page, "[data-figure=activity]")
    # A new figure in the middle, as when a recorder joins, and samples before and after it.
    page.evaluate(send, figure_delta(_samples(25, 5)))
    _settle(page)
    page.evaluate("figure => change('figure', figure)", _figure(30))
    page.evaluate(send, figure_delta(_samples(30, 5)))
    _settle(page)
    assert page.locator("[data-figure=activity] .zoomlayer path").count() > 0
    assert _plot(page, "layout.xaxis.range.map(Date.parse)") == [first, last]
    page.mouse.up()
    # What came meanwhile is there afterwards, and the axis stays where the frame was pulled.
    page.wait_for_function(f"document.querySelector('.js-plotly-plot').data[0].x.at(-1) === '{_text(34)}'")
    wide = last - first
    begin, end = _plot(page, "layout.xaxis.range.map(Date.parse)")
    assert begin == pytest.approx(first + 0.3 * wide, abs=0.05 * wide)
    assert end == pytest.approx(first + 0.7 * wide, abs=0.05 * wide)


def test_a_frame_across_another_plot_is_kept_while_its_plot_comes_anew(open_page):
    page = open_page()
    page.evaluate("plots => change('plots', plots)", {"series": _figure(20)})
    page.get_by_label("Which plot is shown").select_option("series")
    page.wait_for_function("document.querySelector('[data-figure=series]').data?.length === 8")
    _pull(page, "[data-figure=series]")
    page.evaluate("plots => change('plots', plots)", {"series": _figure(40)})
    _settle(page)
    assert page.locator("[data-figure=series] .zoomlayer path").count() > 0
    assert page.evaluate("document.querySelector('[data-figure=series]').data[0].x.length") == 20
    page.mouse.up()
    page.wait_for_function("document.querySelector('[data-figure=series]').data[0].x.length === 40")


def test_a_new_figure_with_other_devices_replaces_the_old_one(open_page):
    page = open_page()
    fewer = _figure(30)
    fewer["data"] = [trace for trace in fewer["data"] if trace["uid"].startswith("GPU-1")]
    page.evaluate("figure => change('figure', figure)", fewer)
    page.wait_for_function("document.querySelector('.js-plotly-plot').data.length === 4")
    assert _plot(page, "data[0].x.length") == 30


def test_it_follows_the_theme(open_page):
    page = open_page()
    assert _plot(page, "data[1].line.color") == "#025c93"
    page.evaluate("document.documentElement.className = 'dark'; document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_function("document.querySelector('.js-plotly-plot').data[1].line.color === '#56b4e9'")
    assert _plot(page, "layout.font.color") == "#eee"


def test_points_survive_a_change_of_theme(open_page):
    page = open_page()
    page.evaluate("traces => emit('msg:custom', {type: 'samples', traces})", figure_delta(_samples(20, 5)))
    page.evaluate("document.documentElement.className = 'dark'; document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_function("document.querySelector('.js-plotly-plot').data[1].line.color === '#56b4e9'")
    assert _plot(page, "data[0].x.length") == 25


def test_it_takes_the_width_of_the_cell(open_page):
    page = open_page()
    page.evaluate("document.querySelector('#cell').style.width = '340px'")
    page.wait_for_function("document.querySelector('.js-plotly-plot')._fullLayout.width <= 340")


def test_without_plotly_it_shows_the_kernels_image_and_says_how_to_get_the_live_view(open_page):
    page = open_page(offered=False)
    page.wait_for_function("asked.length > 0", timeout=10_000)
    assert page.evaluate("asked[0]") == {"type": "image"}
    data = list(static_image(_figure(20), width=600))
    page.evaluate(
        "bytes => emit('msg:custom', {type: 'image'}, [new DataView(new Uint8Array(bytes).buffer)])", data
    )
    page.wait_for_function("document.querySelector('.jp-Gipfel-still').naturalWidth > 100")
    assert "JupyterLab" in page.locator(".jp-Gipfel-notice").inner_text()
    assert page.locator(".jp-Gipfel-still").get_attribute("alt")
    assert not page.locator("[data-figure=activity]").is_visible()


def test_a_saved_view_does_not_claim_to_be_live(open_page):
    page = open_page()
    silent = "document.querySelector('.jp-Gipfel-status').dataset.state === 'silent'"
    page.wait_for_function(silent, timeout=12_000)
    assert "disconnected" in page.locator(".jp-Gipfel-status").inner_text()
    page.evaluate("emit('msg:custom', {type: 'samples', traces: {}})")
    assert page.locator(".jp-Gipfel-status").get_attribute("data-state") == "live"


def test_absence_is_a_sentence(open_page):
    page = open_page(
        status={"state": "absent", "simulated": False, "gpus": 0, "message": "Nothing is recorded."}
    )
    words = page.locator(".jp-Gipfel-status").inner_text()
    assert "Nothing is recorded." in words
    assert "simulated" not in words


def test_a_view_that_is_closed_listens_no_longer(open_page):
    page = open_page()
    page.evaluate("leave()")
    assert page.evaluate("listening()") == 0
    assert page.locator(".main-svg").count() == 0


def _text(second: int) -> str:
    """A time as plotly.js is given it: of the page's own zone, without its name."""
    local = datetime.fromtimestamp(_START_NS // 10**9 + second, ZoneInfo(_ZONE))
    return f"{local:%Y-%m-%dT%H:%M:%S}.000"


@pytest.mark.parametrize(
    ("zone", "hour", "name"),
    [("UTC", "08:00", "UTC"), ("Europe/Zurich", "09:00", "CET"), ("America/Los_Angeles", "00:00", "PST")],
)
def test_every_time_is_on_the_readers_clock_with_its_zone_beside_it(open_page, zone, hour, name):
    page = open_page(zone=zone, status={"state": "stale", "message": "It ended at 2027-01-15 08:00:19 UTC."})
    assert f"{hour[:2]}:00 {name}." in page.locator(".jp-Gipfel-status").inner_text()
    assert _plot(page, "data[0].x.slice(0, 2)") == [f"2027-01-15T{hour}:0{second}.000" for second in (0, 1)]
    titles = page.locator("[data-figure=activity] .x2title").all_text_contents()
    assert name in titles
    ticks = page.locator(
        "[data-figure=activity] .xtick text, [data-figure=activity] .x2tick text"
    ).all_text_contents()
    assert ticks
    assert all(tick.startswith((hour, f"{(int(hour[:2]) - 1) % 24:02}:59")) for tick in ticks)
    # A time range that is selected in the last ten seconds is within them, in any time zone.
    first, last = _pull(page, "[data-figure=activity]")
    page.mouse.up()
    page.wait_for_function("document.querySelector('.js-plotly-plot').layout.xaxis.range[0].includes(' ')")
    begin, end = _plot(page, "layout.xaxis.range.map(Date.parse)")
    assert first < begin < end < last
    assert abs(end - (_START_NS // 10**6)) < 60_000
    hover = _plot(page, "layout.xaxis.hoverformat")
    assert hover == f"%H:%M:%S {name}"


def test_a_clock_that_is_changed_in_between_moves_no_sample(open_page):
    """At the end of summer time one hour comes twice: a figure has one clock, that of its end."""
    page = open_page(zone="Europe/Zurich")
    moved = page.evaluate(
        """async () => {
          const { localTimeFigure, parseUtcMs, formatTimeRange } = await import('./clock.js');
          const change = Date.UTC(2027, 9, 31, 1);
          const x = [-2, -1, 0, 1].map(hours => change + 3_600_000 * hours);
          const axis = { type: 'date', range: [x[0], x[3]], hoverformat: '%H:%M:%S UTC' };
          const { data, layout, offsetMs } = localTimeFigure({ data: [{ x }], layout: { xaxis: axis } });
          return [data[0].x, data[0].x.map(text => parseUtcMs(text, offsetMs) - change), layout.xaxis.range,
                  formatTimeRange(x[0], x[1], x[0]), formatTimeRange(x[2], x[3], x[2])];
        }"""
    )
    texts, back, span, before, after = moved
    assert [text[11:16] for text in texts] == ["00:00", "01:00", "02:00", "03:00"]
    assert back == [-7_200_000, -3_600_000, 0, 3_600_000]
    assert span == [texts[0], texts[3]]
    assert (before, after) == ("01:00:00 \u2013 02:00:00 CEST", "02:00:00 \u2013 03:00:00 CET")


def test_score_and_other_plots_stand_beside_the_lines(open_page):
    page = open_page()
    assert not page.locator(".jp-Gipfel-score").is_visible()
    table = SampleTable.from_samples(
        [Sample(s.time_ns, 0, s.device, {**s.values, "GR_ENGINE_ACTIVE": 1.0}) for s in _samples(0, 30)],
        _GPUS,
        interval=1.0,
    )
    document, plots = document_and_plots(table, dark=False)
    page.evaluate("score => change('score', score)", document)
    page.evaluate("plots => change('plots', plots)", plots)
    assert "points lost: " in page.locator(".jp-Gipfel-lost").inner_text()
    assert page.locator(".jp-Gipfel-advice li").count() == min(
        3, sum(not each["alternative"] for each in document["advice"])
    )
    for name, kind in (("score", "bar"), ("heat", "heatmap"), ("series", "scatter"), ("shares", "scatter")):
        page.get_by_label("Which plot is shown").select_option(name)
        page.wait_for_function(f"document.querySelector('[data-figure={name}]').data?.[0].type === '{kind}'")
    assert {"type": "plots", "dark": False} in page.evaluate("asked")
    assert not page.locator("[data-figure=activity]").is_visible()
    # The kernel draws these in the colours of the page.
    page.evaluate("document.documentElement.className = 'dark'; document.body.dataset.jpThemeLight = 'false'")
    page.wait_for_function("asked.at(-1).dark === true")
    page.get_by_label("Which plot is shown").select_option("activity")
    assert page.locator("[data-figure=activity]").is_visible()
