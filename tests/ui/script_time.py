"""Measure a page's script time from a performance trace: CPU time of its main thread."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page

_CATEGORIES = ["-*", "devtools.timeline", "blink.user_timing", "v8", "toplevel"]
_SCRIPT = frozenset(("FunctionCall", "EvaluateScript", "v8.callFunction", "RunMicrotasks", "TimerFire"))
_END_S = 60.0


@dataclass
class ScriptTrace:
    """Milliseconds of CPU that script took: of each outermost call, by when it began in seconds."""

    calls: list[tuple[float, float]] = field(default_factory=list)
    draws: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def longest(self) -> float:
        """Of one call: what the page can't answer in between."""
        return max((length for _, length in self.calls), default=0.0)

    @property
    def per_second(self) -> float:
        """The mean."""
        return sum(length for _, length in self.calls) / max(self.seconds, 1e-9)


@contextmanager
def traced(page: Page) -> Iterator[ScriptTrace]:
    """Trace a page; the result is there when the block has ended."""
    found = ScriptTrace()
    session = page.context.new_cdp_session(page)
    events: list[dict[str, Any]] = []
    done: list[object] = []
    session.on("Tracing.dataCollected", lambda content: events.extend(content["value"]))
    session.on("Tracing.tracingComplete", lambda content: done.append(content))
    session.send(
        "Tracing.start",
        {"transferMode": "ReportEvents", "traceConfig": {"includedCategories": _CATEGORIES}},
    )
    started = time.monotonic()
    try:
        yield found
    finally:
        found.seconds = time.monotonic() - started
        session.send("Tracing.end")
        end = time.monotonic() + _END_S
        while not done and time.monotonic() < end:
            page.wait_for_timeout(50)
        session.detach()
    assert done, "The trace did not end."
    _read(events, found)


def heap_megabytes(page: Page) -> float:
    """Return what the page's script holds after its garbage was collected."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.enable")
    session.send("HeapProfiler.collectGarbage")
    size = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(size) / 1e6


def _read(events: list[dict[str, Any]], found: ScriptTrace) -> None:
    """Add up the outermost calls of the thread that runs most of them."""
    threads: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event.get("ph") == "X" and event["name"] in _SCRIPT and "tdur" in event:
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
        # A measure is two events: where it begins and where it ends.
        elif "gipfel draw" in event["name"] and event["ph"] == "e":
            found.draws[event["name"]] = found.draws.get(event["name"], 0) + 1
    calls = max(threads.values(), key=lambda each: sum(e["tdur"] for e in each), default=[])
    until = 0.0
    for event in sorted(calls, key=lambda each: (each["ts"], -each["dur"])):
        if event["ts"] >= until:
            until = event["ts"] + event["dur"]
            found.calls.append((event["ts"] / 1e6, event["tdur"] / 1e3))
