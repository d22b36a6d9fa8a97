"""Weight of a page with the panel: bytes until the first plot, idle requests, heap, a saved notebook.

The peers are the panel's own figures before its scripts were compressed, and before its polls were replaced
by a socket. Five idle minutes and the ten minutes of the heap are shortened by `_FACTOR`; the number of
requests is multiplied by it. ``GIPFEL_PAGE_WEIGHT_FACTOR=1`` measures them in full, in a quarter of an hour.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / each) for each in ("ui", "cluster", "extension")]

from conftest import chromium  # noqa: E402 - of tests/ui
from lab_page import LabPage  # noqa: E402
from lab_server import LabServer  # noqa: E402
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402
from run import LEFT_OUT  # noqa: E402
from script_time import heap_megabytes  # noqa: E402

_FACTOR = int(os.environ.get("GIPFEL_PAGE_WEIGHT_FACTOR", "5"))
_IDLE_S = 300 / _FACTOR
_HEAP_S = 600 / _FACTOR
_SETTLE_S = 15
_GPUS = 8
_OURS = re.compile(r"/gipfel/|/@gipfel/")
#: Of the panel before: bytes, requests, heap, bytes of a notebook.
_BYTES, _REQUESTS, _HEAP_MB, _NOTEBOOK_BYTES = 4.745e6, 115.0, 31.7, 500e3
_CELL = "from gipfel_widgets import Saturation\nSaturation()"


class Traffic:
    """Requests of a page and the bytes of their responses, as the browser's network log has them."""

    def __init__(self, page: Page) -> None:
        self.urls: dict[str, str] = {}
        self._bytes: dict[str, float] = {}
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.requestWillBeSent", self._sent)
        session.on("Network.loadingFinished", self._finished)
        session.on("Network.webSocketFrameReceived", self._frame)

    @property
    def own(self) -> list[str]:
        """URLs of the requests to Gipfel."""
        return [url for url in self.urls.values() if _OURS.search(url)]

    @property
    def own_bytes(self) -> float:
        """Bytes that Gipfel's scripts, styles, responses and messages took on the wire."""
        return sum(size for key, size in self._bytes.items() if _OURS.search(self.urls.get(key, "")))

    def _sent(self, event: dict[str, object]) -> None:
        request = event["request"]
        assert isinstance(request, dict)
        if not str(request["url"]).startswith("data:"):
            self.urls[str(event["requestId"])] = str(request["url"])

    def _finished(self, event: dict[str, float]) -> None:
        self._bytes[str(event["requestId"])] = event["encodedDataLength"]

    def _frame(self, event: dict[str, dict[str, str]]) -> None:
        self._bytes["frames"] = self._bytes.get("frames", 0.0) + len(event["response"]["payloadData"])


def main() -> int:
    """Measure, and print rows."""
    program = chromium()
    if program is None:
        print("There is no Chromium here.", file=sys.stderr)
        return LEFT_OUT
    with LabServer("host", f"synthetic:training:{_GPUS}") as server, sync_playwright() as programs:
        browser = programs.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1200})
        lab, traffic = LabPage(page), Traffic(page)
        page.goto(server.url)
        lab.wait_until_ready()
        lab.open_panel()
        expect(page.locator("[data-figure='job'] .main-svg").first).to_be_visible(timeout=60_000)
        first = traffic.own_bytes
        page.wait_for_timeout(1000 * _SETTLE_S)
        traffic.urls.clear()
        page.wait_for_timeout(1000 * _IDLE_S)
        own = _FACTOR * len(traffic.own)
        print(_paths(traffic.urls.values()), file=sys.stderr)
        page.wait_for_timeout(1000 * max(0.0, _HEAP_S - _IDLE_S - _SETTLE_S))
        heap = heap_megabytes(page)
        notebook = _notebook_bytes(lab, server.folder)
        browser.close()
    _say("page-weight: Gipfel's bytes until the first plot", first / 1e6, _BYTES / 1e6, 0.2, "MB")
    times, divided = (f", x {_FACTOR}", f" / {_FACTOR}") if _FACTOR > 1 else ("", "")
    _say(f"page-weight: requests to Gipfel in 5 idle min{times}", own, _REQUESTS, 0.1, "")
    _say(f"page-weight: heap after 10 min{divided}", heap, _HEAP_MB, 1.1, "MB")
    _say("page-weight: saved notebook with Saturation()", notebook / 1e3, _NOTEBOOK_BYTES / 1e3, 0.3, "kB")
    return 0


def _notebook_bytes(lab: LabPage, folder: Path) -> int:
    """Return the size of a notebook with a live view that was saved while it ran."""
    lab.run_cell(_CELL)
    expect(lab.widget_figure).to_be_visible(timeout=60_000)
    lab.page.wait_for_timeout(5000)
    lab.page.keyboard.press("Control+s")
    lab.page.wait_for_timeout(4000)
    return max(path.stat().st_size for path in folder.glob("*.ipynb"))


def _paths(urls: Iterable[str]) -> str:
    counts = Counter(urlsplit(url).path for url in urls)
    return "  ".join(f"{path} x {count}" for path, count in counts.items())


def _say(name: str, ours: float, before: float, bound: float, unit: str) -> None:
    ratio = ours / before
    row = {"name": name, "ours": round(ours, 3), "peer": before, "unit": unit, "ratio": ratio}
    print(json.dumps({**row, "bound": bound, "holds": ratio <= bound}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
