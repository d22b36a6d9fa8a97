"""The HTML report in a real browser: drawn without a network, and its figures answer to the mouse."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "parts"))

from many_nodes import record_node

pytestmark = pytest.mark.browser


def test_a_report_is_drawn_offline_and_says_values(tmp_path, new_page, screenshot):
    run = tmp_path / "alps-1"
    telemetry = run / "telemetry"
    telemetry.mkdir(parents=True)
    record_node(telemetry, 120)
    argv = [sys.executable, "-m", "gipfel_extension.cli", "report", str(run), "-o", str(tmp_path / "r.html")]
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run(argv, check=True, timeout=120, env=environment, capture_output=True)

    page = new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{tmp_path / 'r.html'}")
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
