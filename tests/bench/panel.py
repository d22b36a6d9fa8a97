"""Main-thread time of the panel in a browser: 64 simulated GPUs at 1 Hz, two minutes, the default view.

Script is CPU time as a performance trace counts it, so a busy machine changes it little. An update is what
one second brings.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("ui", "cluster", "extension")]

from conftest import chromium  # noqa: E402 - of tests/ui
from lab_page import LabPage  # noqa: E402
from lab_server import LabServer  # noqa: E402
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402
from run import LEFT_OUT  # noqa: E402
from script_time import ScriptTrace, heap_megabytes, traced  # noqa: E402

_SECONDS = 120
_MAX_MS = 50.0
_HEAP_GROWTH_MB = 5.0
_SETTLE_S = 30


def main() -> int:
    """Measure, and say it in rows."""
    program = chromium()
    if program is None:
        print("There is no Chromium here.", file=sys.stderr)
        return LEFT_OUT
    with LabServer("host", "synthetic:training:64") as server, sync_playwright() as programs:
        browser = programs.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        # Tall enough that job lines, heat map and the selected GPU are in view together.
        page = browser.new_page(viewport={"width": 1600, "height": 2200})
        lab = LabPage(page)
        page.goto(server.url)
        lab.wait_until_ready()
        lab.open_panel()
        for name in ("job", "heat", "gpu/"):
            plot = page.locator(f"[data-figure^='{name}'] .main-svg").first
            expect(plot).to_be_visible(timeout=60_000)
        page.wait_for_timeout(1000 * _SETTLE_S)
        before = heap_megabytes(page)
        with traced(page) as trace:
            page.wait_for_timeout(1000 * _SECONDS)
        grown = heap_megabytes(page) - before
        answers = _zooms(page)
        browser.close()
    _say("panel: script per update, of 50 ms", trace.per_second, _MAX_MS, "ms")
    _say("panel: longest script, of 50 ms", trace.longest, _MAX_MS, "ms")
    _say("panel: heap growth in 2 min, of 5 MB", max(grown, 0.0), _HEAP_GROWTH_MB, "MB")
    _say("panel: answer to a zoom, of 500 ms", answers, 500.0, "ms")
    print(_draws(trace), file=sys.stderr)
    return 0


def _zooms(page: Page) -> float:
    """Milliseconds from the end of a drag on the job's lines to the axis that it asked for."""
    box = page.locator("[data-figure='job'] .nsewdrag").first.bounding_box()
    assert box
    page.evaluate(
        "document.querySelector('[data-figure=job]').on('plotly_relayout',"
        " () => { globalThis.zoomed ??= performance.now(); })"
    )
    page.evaluate("addEventListener('mouseup', () => { globalThis.released = performance.now(); }, true)")
    up = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, up)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, up, steps=6)
    page.mouse.up()
    page.wait_for_function("globalThis.zoomed !== undefined", timeout=20_000)
    waited: float = page.evaluate("Math.max(0, globalThis.zoomed - globalThis.released)")
    return waited


def _draws(trace: ScriptTrace) -> str:
    return "  ".join(f"{name.removeprefix('gipfel draw ')} x {count}" for name, count in trace.draws.items())


def _say(name: str, ours: float, limit: float, unit: str) -> None:
    row = {"name": name, "ours": round(ours, 1), "peer": limit, "unit": unit}
    print(json.dumps({**row, "ratio": ours / limit, "bound": 1.0, "holds": ours <= limit}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
