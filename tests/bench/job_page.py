"""The job page on 1 024 GPUs: first picture, script of an update and of the heat map, and the server's time.

A run of 1 024 simulated GPUs and an hour is opened in Chromium, then it grows. Script is CPU time as a trace
counts it, so a busy machine changes it little. The first picture is what page and server take together from
the click on the tab until the heat map is drawn, in CPU time, with the plots' program loaded. Times of the
server are CPU time of one answer after new samples of all GPUs. The peer of each row is its limit.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("ui", "cluster", "extension")]

from communication_files import write_dumps  # noqa: E402 - of tests/extension
from conftest import chromium  # noqa: E402 - of tests/ui
from lab_page import LabPage  # noqa: E402
from lab_server import LabServer  # noqa: E402
from large_run import INTERVAL, LargeRun  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402
from run import LEFT_OUT  # noqa: E402
from script_time import ScriptTrace, traced  # noqa: E402

from gipfel_extension.communication import read_communication  # noqa: E402
from gipfel_extension.server.job import JobQuery, JobView, job_document, job_figures  # noqa: E402

GPUS, SECONDS = 1024, 3600
_GROWING_S = 40
_DUMPED_CALLS = 50


def main() -> int:
    """Measure, and print rows."""
    program = chromium()
    if program is None:
        print("There is no Chromium here.", file=sys.stderr)
        return LEFT_OUT
    with LabServer("host") as server, sync_playwright() as programs:
        folder = server.folder / "runs" / "made-1024"
        run = LargeRun(folder, GPUS, start_ns=time.time_ns() - SECONDS * 10**9)
        run.extend(SECONDS)
        browser = programs.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1600, "height": 1400})
        first, waited, trace = _page(page, server, run)
        browser.close()
        print(f"first picture after {waited:.0f} ms; draws: {trace.draws}", file=sys.stderr)
        for name, make in _answers(folder):
            run.extend(INTERVAL)
            began = time.process_time()
            make()
            _say(f"job-page: server, {name}", 1000 * (time.process_time() - began), 2000.0)
    _say("job-page: first picture", first, 1000.0)
    _say("job-page: script of an update", _update(trace), 50.0)
    _say("job-page: longest script", trace.longest, 200.0)
    _say("job-page: heat maps drawn in 5 s", _heats(trace) * 5, 1.0, "")
    _communication()
    return 0


def _page(page: Page, server: LabServer, run: LargeRun) -> tuple[float, float, ScriptTrace]:
    """Return milliseconds of CPU and of the clock to the first picture, and the trace of a growing run."""
    lab = LabPage(page)
    page.goto(f"{server.url}&gipfel-job=tab%3Dranks%26run%3Dmade-1024")
    job = page.locator("#gipfel-job")
    job.locator("tr[data-rank]").first.wait_for(timeout=60_000)
    # The plots' program is loaded once, and the verdicts are made.
    page.wait_for_timeout(15_000)
    page.evaluate(_WATCH)
    with traced(page) as opening:
        before = server.cpu_seconds()
        job.get_by_role("tab", name="Overview").click()
        page.wait_for_function("globalThis.gipfelDrawn !== undefined", timeout=60_000)
        served = server.cpu_seconds() - before
    waited: float = page.evaluate("globalThis.gipfelDrawn - globalThis.gipfelPressed")
    first = 1000 * served + sum(length for _, length in opening.calls)
    assert not lab.errors
    page.wait_for_timeout(6000)
    with traced(page) as trace:
        for _ in range(_GROWING_S // INTERVAL):
            began = time.monotonic()
            run.extend(INTERVAL)
            page.wait_for_timeout(max(0.0, 1000 * (INTERVAL - time.monotonic() + began)))
    return first, waited, trace


_WATCH = """() => {
  document.addEventListener('click', () => { globalThis.gipfelPressed ??= performance.now(); }, true);
  const look = () => {
    const found = document.querySelector('#gipfel-job .heatmaplayer image');
    if (found) { globalThis.gipfelDrawn = performance.now(); } else { requestAnimationFrame(look); }
  };
  requestAnimationFrame(look);
}"""


def _update(trace: ScriptTrace) -> float:
    """Return the mean script of a figure that is redrawn without the heat map."""
    draws = sum(count for name, count in trace.draws.items() if "heat" not in name)
    return sum(length for _, length in trace.calls) / max(draws, 1)


def _heats(trace: ScriptTrace) -> float:
    return sum(count for name, count in trace.draws.items() if "heat" in name) / max(trace.seconds, 1e-9)


def _answers(folder: Path) -> list[tuple[str, Callable[[], object]]]:
    overview = JobView(bands=("SM_ACTIVE",), figures=("bands", "heat"))
    job_figures(folder, overview)
    return [
        ("figures of a grown run", lambda: job_figures(folder, overview)),
        ("ranks of a grown run", lambda: job_document(folder, JobQuery())),
    ]


def _communication() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dumps(folder, GPUS, slow_group=7, steps=_DUMPED_CALLS)
        began = time.process_time()
        found = read_communication(folder)
        took = time.process_time() - began
    assert found.ranks == GPUS
    assert found.lines[0].startswith("Ranks 56-63")
    _say(f"communication: {GPUS} dumps", 1000 * took, 10_000.0)


def _say(name: str, ours: float, limit: float, unit: str = "ms") -> None:
    row = {"name": name, "ours": round(ours, 1), "peer": limit, "unit": unit}
    print(json.dumps({**row, "ratio": ours / limit, "bound": 1.0, "holds": ours <= limit}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
