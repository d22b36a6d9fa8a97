"""How often the flight recorder's verdict names the rank that caused a hang, on made dumps.

A cell is a fault in jobs of several layouts, with a whole or a wrapped ring buffer, and with and without
timing; the rules were set on these. Cells whose names begin with "later" are of `hang_dumps_later`, which was
written afterwards.

A verdict is right if it names exactly the faulty rank and its side; where dumps can't tell (a network, or a
GPU without timing), "cannot tell" is right, and so is nobody where nothing is wrong. Naming another rank is
wrong.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hang_dumps import FAULTS, Hang, Layout, make_hang
from hang_dumps_later import LATER_FAULTS, NOISE, SEEN_NOISE, make_later_hang
from intervals import wilson

from gipfel_extension.training.flight_recorder import FlightReport, analyse
from gipfel_extension.training.flight_recorder.dump import dump_of

DRAWS = 100
MEASURED = (
    Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "training" / "flight_recorder",
)
LAYOUTS = (Layout(4, 1, 1), Layout(2, 2, 2), Layout(2, 2, 4), Layout(4, 4, 4))
RIGHT, WRONG = 0.95, 0.01


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell."""
    found = {
        f"{fault}.{'timing' if timing else 'plain'}.{'wrapped' if buffer < 100 else 'whole'}": partial(
            _measure, fault, buffer, timing=timing, seed=seed, draws=draws
        )
        for fault in FAULTS
        for timing in (False, True)
        for buffer in (2000, 24)
    }
    return found | {
        f"later.{fault}.{noise}": partial(_measure_later, fault, noise, seed=seed, draws=draws)
        for fault in LATER_FAULTS
        for noise in SEEN_NOISE | NOISE
    }


def _measure(fault: str, buffer: int, *, timing: bool, seed: int, draws: int) -> dict[str, Any]:
    tally: Counter[str] = Counter()
    for layout in LAYOUTS:
        for draw in range(draws):
            hang = make_hang(
                layout, (seed, fault, buffer, timing, layout, draw), fault, buffer=buffer, timing=timing
            )
            tally[judge(hang, report_on(hang))] += 1
    return {"fault": fault, **tally}


def _measure_later(fault: str, noise: str, *, seed: int, draws: int) -> dict[str, Any]:
    tally: Counter[str] = Counter()
    for draw in range(draws):
        hang = make_later_hang((seed, fault, noise, draw), fault, noise)
        tally[judge(hang, report_on(hang))] += 1
    return {"fault": f"later.{noise}.{fault}", **tally}


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a line."""
    return " ".join(f"{key} {value}" for key, value in document.items())


def report_on(hang: Hang) -> FlightReport:
    """Return the report on made dumps."""
    return analyse([dump_of(raw, rank) for rank, raw in hang.dumps.items()])


def judge(hang: Hang, report: FlightReport) -> str:
    """Return "right", "cannot_tell" (where it could be told), or "wrong"."""
    named = tuple(each.rank for each in report.faulty_ranks)
    if named:
        if hang.fault == "shifted" and all("different orders" in each.why for each in report.faulty_ranks):
            # Of two ranks that wait for each other, dumps don't tell which one left a call out.
            return "right" if set(hang.truth) < set(named) and len(named) == 2 else "wrong"
        if hang.fault == "two":
            return "right" if set(named) <= set(hang.truth) else "wrong"
        sides = {each.side for each in report.faulty_ranks}
        return "right" if named == hang.truth and sides == {hang.side} else "wrong"
    if hang.fault == "nothing":
        return "right" if report.verdict == "none" else "wrong"
    if any(not hang.truth or side.ranks == hang.truth for each in report.mismatches for side in each.sides):
        # Of two ranks alone, dumps don't tell which one is wrong: both are named with their calls.
        return "right"
    if report.verdict == "none":
        return "wrong"
    return "right" if not hang.ready else "cannot_tell"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each fault: the share of right verdicts, and of wrong ones."""
    rows = []
    for fault in sorted({document["fault"] for document in documents.values()}):
        tally: Counter[str] = Counter()
        for document in documents.values():
            if document["fault"] == fault:
                tally += Counter({key: value for key, value in document.items() if key != "fault"})
        total = tally.total()
        if total:
            low, high = wilson(tally["wrong"], total)
            rows += [
                _row(
                    f"hangs.{fault}.right",
                    tally["right"] / total,
                    RIGHT,
                    holds=tally["right"] >= RIGHT * total,
                ),
                {
                    **_row(
                        f"hangs.{fault}.wrong",
                        tally["wrong"] / total,
                        WRONG,
                        holds=tally["wrong"] <= WRONG * total,
                    ),
                    "interval": [low, high],
                },
            ]
    return rows


def _row(name: str, ours: float, bound: float, *, holds: bool) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "peer": None,
        "unit": "share",
        "ratio": ours / bound,
        "bound": 1.0,
        "holds": holds,
    }
