"""The first visit, from login to home, by keyboard and mouse in all time zones, windows and colours.

A cell is one way, on a hub of its own. In the first 12, each value of a dimension meets each of every other:
``DRAWS=12`` goes only these. `tests/ui/test_trip.py` goes four. Screenshots are in ``build/campaigns/trip``.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / each) for each in ("ui", "cluster", "extension")]

from conftest import ARGUMENTS, chromium  # noqa: E402 - of tests/ui
from hub_process import HubProcess, proxy_folder  # noqa: E402
from playwright.sync_api import Error, Page, sync_playwright  # noqa: E402
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


def go(way: Way) -> dict[str, Any]:
    """Go one way; returns seconds until the first sentence, and what was wrong."""
    _PICTURES.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="gipfel-trip-", dir="/var/tmp"))
    try:
        with HubProcess(state, _ENVIRONMENT, proxy=proxy_folder()) as hub, sync_playwright() as programs:
            browser = programs.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
            trip = Trip(way, hub, state, browser, _keep)
            problem = ""
            try:
                trip.go()
            except (AssertionError, Error) as error:
                _keep(trip.page, f"{way}-problem")
                problem = str(error)
            finally:
                trip.close()
                browser.close()
            return {"sentence_s": trip.seconds_to_sentence, "problem": problem}
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _keep(page: Page, name: str) -> None:
    page.screenshot(path=_PICTURES / f"{name}.png")


def line(document: Mapping[str, Any]) -> str:
    """Say how one way went."""
    return f"first sentence after {document['sentence_s']:.0f} s. {document['problem']}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows: ways without a problem, and the longest time until the first sentence."""
    ways = list(documents.values())
    good = [way for way in ways if not way["problem"]]
    slowest = max((way["sentence_s"] for way in good), default=_LIMIT_S)
    return [
        {
            "name": f"trip: ways from login to home without a problem, of {len(ways)}",
            "ours": len(good), "peer": len(ways), "unit": "", "ratio": len(good) / len(ways),
            "bound": 1.0, "holds": len(good) == len(ways),
        },
        {
            "name": "trip: from Start to the first sentence, slowest",
            "ours": round(slowest, 1), "peer": _LIMIT_S, "unit": "s", "ratio": slowest / _LIMIT_S,
            "bound": 1.0, "holds": slowest < _LIMIT_S,
        },
    ]  # fmt: skip
