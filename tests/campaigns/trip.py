"""The first visit, from login to home, by keyboard and mouse in all time zones, windows and colours.

A cell is one way of a new user. Hub and browser serve all ways of a process: their start would be a third of
a way. In the first 12, each value of a dimension meets each of every other: ``DRAWS=12`` goes only these.
`tests/ui/test_trip.py` goes two. Screenshots are in ``build/campaigns/trip``.
"""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from multiprocessing.util import Finalize
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / each) for each in ("ui", "cluster", "extension")]

from conftest import ARGUMENTS, chromium  # noqa: E402 - of tests/ui
from hub_process import HubProcess, proxy_folder  # noqa: E402
from playwright.sync_api import Browser, Error, Page, sync_playwright  # noqa: E402
from trip_page import Trip, Way, all_ways  # noqa: E402

MEASURED = (ROOT / "tests/ui", ROOT / "extension/gipfel_extension")
DRAWS = 72
WORKERS = 1
_PICTURES = ROOT / "build/campaigns/trip"
_ENVIRONMENT = {"GIPFEL_SCHEDULER": "local", "GIPFEL_CLUSTER": "workstation"}
_LIMIT_S = 60.0


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the first ways."""
    return {str(way): partial(go, way) for way in all_ways()[:draws]}


class _Site(NamedTuple):
    """Hub, browser and directory that all ways of one process use."""

    hub: HubProcess
    state: Path
    browser: Browser
    stopping: ThreadPoolExecutor


@contextlib.contextmanager
def _opened() -> Iterator[_Site]:
    state = Path(tempfile.mkdtemp(prefix="gipfel-trip-", dir="/var/tmp"))
    try:
        with HubProcess(state, _ENVIRONMENT, proxy=proxy_folder()) as hub, sync_playwright() as programs:
            browser = programs.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
            with ThreadPoolExecutor(1) as stopping:
                yield _Site(hub, state, browser, stopping)
            browser.close()
    finally:
        shutil.rmtree(state, ignore_errors=True)


@cache
def _site() -> _Site:
    stack = contextlib.ExitStack()
    # A worker of the campaign leaves without calling what `atexit` knows.
    Finalize(None, stack.close, exitpriority=0)
    return stack.enter_context(_opened())


def go(way: Way) -> dict[str, Any]:
    """Go one way; returns seconds until the first sentence, and what was wrong."""
    _PICTURES.mkdir(parents=True, exist_ok=True)
    hub, state, browser, stopping = _site()
    trip = Trip(way, hub, state, browser, _keep)
    problem = ""
    try:
        trip.go()
    except (AssertionError, Error) as error:
        _keep(trip.page, f"{way}-problem")
        problem = str(error)
    finally:
        trip.close()
        # The next way need not wait for it.
        stopping.submit(trip.stop_server)
    return {"sentence_s": trip.seconds_to_sentence, "problem": problem}


def _keep(page: Page, name: str) -> None:
    page.screenshot(path=_PICTURES / f"{name}.png")


def line(document: Mapping[str, Any]) -> str:
    """Say how one way went."""
    return f"first sentence after {document['sentence_s']:.0f} s. {document['problem']}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows: ways without a problem, and the median and longest time until the first sentence."""
    ways = list(documents.values())
    good = [way for way in ways if not way["problem"]]
    seconds = [way["sentence_s"] for way in good] or [_LIMIT_S]
    return [
        {
            "name": f"trip: ways from login to home without a problem, of {len(ways)}",
            "ours": len(good), "peer": len(ways), "unit": "", "ratio": len(good) / len(ways),
            "bound": 1.0, "holds": len(good) == len(ways),
        },
        *(
            {
                "name": f"trip: from Start to the first sentence, {name}",
                "ours": round(value, 1), "peer": _LIMIT_S, "unit": "s", "ratio": value / _LIMIT_S,
                "bound": 1.0, "holds": value < _LIMIT_S,
            }
            for name, value in (("median", median(seconds)), ("slowest", max(seconds)))
        ),
    ]  # fmt: skip
