"""The HTML report in a real browser: drawn without a network, and its figures answer to the mouse."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from many_nodes import Made, fine_samples, node_samples, record_node
from playwright.sync_api import expect
from test_hub_pages import serious_findings

pytestmark = pytest.mark.browser


_LONG_NAME = "local-20261122T131204-48812-train-7b-with-fused-optimizer"


def report_of(folder: Path, gpus: int = 4, name: str = "alps-1", made: Made = node_samples) -> Path:
    run = folder / name
    telemetry = run / "telemetry"
    telemetry.mkdir(parents=True)
    record_node(telemetry, 120, gpus=gpus, made=made, fine=made is fine_samples)
    made = folder / "r.html"
    argv = [sys.executable, "-m", "gipfel_extension.cli", "report", str(run), "-o", str(made)]
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run(argv, check=True, timeout=120, env=environment, capture_output=True)
    return made


def test_a_report_is_drawn_offline_and_says_values(tmp_path, new_page, screenshot):
    file = report_of(tmp_path)

    page = new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{file}")
    plots = page.locator(".plot")
    count = plots.count()
    assert count >= 6
    expect(page.locator(".plot.js-plotly-plot")).to_have_count(count)
    for place in range(count):
        expect(plots.nth(place).locator(".main-svg").first).to_be_visible()
    # The share of each loss is hatched, so that colours alone don't tell them apart.
    shares = page.locator("section", has=page.get_by_role("heading", name="Shares over time"))
    expect(shares.locator(".plot pattern").first).to_be_attached()
    # The GPUs' lines: a pointer over them is told the values there.
    lines = page.locator("section", has=page.get_by_role("heading", name="Activity", exact=True))
    box = lines.locator(".plot")
    box.scroll_into_view_if_needed()
    drag = box.locator(".nsewdrag").first
    size = drag.bounding_box()
    assert size is not None
    page.mouse.move(size["x"] + size["width"] / 3, size["y"] + size["height"] / 2)
    page.mouse.move(size["x"] + size["width"] / 2, size["y"] + size["height"] / 2)
    expect(box.locator(".hoverlayer text").first).to_be_attached()
    # One clock for plots and words: the reader's, half a year from now too.
    titles = box.locator("[class*=title]").all_text_contents()
    assert "PDT" in titles
    assert all(
        tick.startswith("08:")
        for tick in box.locator("[class*=tick] text").all_text_contents()
        if ":" in tick
    )
    assert re.search(r"Made by gipfel on [-0-9]+ [0-9:]+ P[DS]T\.", page.locator("footer").inner_text())
    said = page.locator("figcaption time").all_inner_texts()
    assert said
    assert not any("UTC" in caption for caption in page.locator("figcaption").all_inner_texts())
    assert all(re.match(r"2025-06-15 08:\d\d:\d\d( PDT)?$", time) for time in said)
    screenshot(page, "report")
    assert problems == []
    assert [url for url in asked if not url.startswith(("file://", "blob:", "data:"))] == []


def test_losses_are_in_order_the_runs_name_is_whole_and_evidence_is_drawn(tmp_path, new_page, screenshot):
    file = report_of(tmp_path, name=_LONG_NAME, made=fine_samples)
    page = new_page()
    page.goto(f"file://{file}")
    expect(page.locator(".plot.js-plotly-plot")).to_have_count(page.locator(".plot").count())
    for shown in (page.locator(".about"), page.locator("p", has_text="Saturation")):
        expect(shown.first).to_contain_text(_LONG_NAME)
    assert _LONG_NAME in page.title()
    losses = page.locator("#score p", has_text="points lost:").inner_text()
    points = [int(number) for number in re.findall(r"[a-z] (\d+)", losses)]
    assert len(points) > 2
    assert points == sorted(points, reverse=True)
    # Each metric that a piece of evidence names is a line of its figure.
    figures = page.locator("#advice figure")
    assert figures.count() > 1
    for figure in figures.all():
        named = figure.locator("figcaption").inner_text().rpartition(": ")[2].rstrip(".").split(", ")
        drawn = figure.locator(".plot").evaluate("plot => plot.data.map(each => each.name)")
        assert set(named) <= set(drawn), figure.inner_text()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        screenshot(page, f"report-losses-{scheme}")
        figures.first.scroll_into_view_if_needed()
        screenshot(page, f"report-evidence-{scheme}")
        page.evaluate("scrollTo(0, 0)")


#: Script that returns the texts of a figure that overlap its legend.
_OVERLAPS = """
plot => {
  const box = node => node.getBoundingClientRect();
  const names = [...plot.querySelectorAll('.legend .legendtext')].filter(node => box(node).width > 0);
  const words = [...plot.querySelectorAll('.annotation-text, .gtitle')].filter(node => box(node).width > 0);
  return words.flatMap(word => {
    const one = box(word);
    return names
      .filter(name => {
        const other = box(name);
        return (
          Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
          Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 1
        );
      })
      .map(name => `${name.textContent} over ${word.textContent}`);
  });
}
"""


def test_on_a_phone_no_legend_lies_over_a_title(tmp_path, new_page, screenshot):
    file = report_of(tmp_path)
    page = new_page()
    page.set_viewport_size({"width": 320, "height": 900})
    page.goto(f"file://{file}")
    plots = page.locator(".plot")
    expect(page.locator(".plot.js-plotly-plot")).to_have_count(plots.count())
    found = [plot.evaluate(_OVERLAPS) for plot in plots.all()]
    screenshot(page, "report-narrow")
    assert [each for each in found if each] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert serious_findings(page) == [], scheme


def test_on_paper_folds_are_open_and_figures_are_whole(tmp_path, new_page):
    file = report_of(tmp_path, gpus=20)
    page = new_page()
    page.emulate_media(color_scheme="dark")
    page.goto(f"file://{file}")
    plots = page.locator(".plot")
    expect(page.locator(".plot.js-plotly-plot")).to_have_count(plots.count())
    row = page.locator("#gpus tbody tr").last
    assert not row.evaluate("node => node.checkVisibility({contentVisibilityAuto: true})")
    page.emulate_media(media="print", color_scheme="dark")
    assert row.evaluate("node => node.checkVisibility({contentVisibilityAuto: true})")
    expect(page.locator("body")).to_have_css("color", "rgb(0, 0, 0)")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for figure in page.locator("figure").all():
        expect(figure).to_have_css("break-inside", "avoid")
        drawn = figure.locator(".main-svg").first.bounding_box()
        assert drawn is not None
        assert drawn["width"] <= 660
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    wide = "() => [...document.querySelectorAll('.plot .main-svg')].every(node => node.clientWidth > 900)"
    page.wait_for_function(wide)
