"""Detection rates, dating errors and false alarms of changes in a run's pace.

A cell is a change at a random step of a run with noise; a second kind of cells compares runs with earlier
ones. Beside it stands one line: the mean of ten steps a tenth above the mean of the first fifty.
"""

import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import run_courses
from intervals import wilson
from step_tables import TRIED as NOISE
from step_tables import Floats

from gipfel_extension.diagnosis.pace import compare_paces, find_changes, pace_of
from gipfel_extension.diagnosis.steps import StepTable

DRAWS = 400
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "diagnosis",)
FALSE, FOUND = 0.01, 0.95
LENGTHS, NOISES, SHARES = (150, 400, 2000), (0.02, 0.05, 0.10), (0.0, 0.05, 0.10, 0.20, -0.10)
#: Runs differ by this much, earlier runs that there are, and what the new one is slower by.
BETWEEN, EARLIER, SLOWER = (0.01, 0.02), (1, 5), (0.0, 0.01, 0.10)
#: A change counts as found within so many steps.
NEAR, MARGIN = 20, 40


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell."""
    within = {
        f"within.{100 * share:+.0f}.noise-{100 * cv:.0f}.{length}": partial(_within, share, cv, length)
        for share in SHARES
        for cv in NOISES
        for length in LENGTHS
    }
    between = {
        f"runs.{100 * slower:+.0f}.apart-{100 * apart:.0f}.earlier-{earlier}": partial(
            _runs, slower, apart, earlier
        )
        for slower in SLOWER
        for apart in BETWEEN
        for earlier in EARLIER
    }
    measures = {**within, **between, **run_courses.cells()}
    return {name: partial(_measure, name, measure, seed, draws) for name, measure in measures.items()}


def _measure(
    name: str, one: Callable[[np.random.Generator, str], Counter[str]], seed: int, draws: int
) -> dict[str, Any]:
    tally: Counter[str] = Counter()
    draws = max(1, draws // 4) if name.endswith(".2000") else draws
    for number in range(draws):
        rng = np.random.default_rng((seed, zlib.crc32(name.encode()), number))
        tally.update(one(rng, tuple(NOISE)[number % len(NOISE)]))
    kind, share, *rest = name.split(".")
    return {"kind": kind, "share": float(share) / 100, "at": ".".join(rest), "draws": draws, **tally}


def run_of(rng: np.random.Generator, noise: str, cv: float, length: int) -> Floats:
    """Return durations of steps: warm-up, noise, a checkpoint or an evaluation every so many steps."""
    seconds = NOISE[noise](rng, (1, length), cv)[0] * rng.uniform(0.1, 20)
    seconds[:6] *= rng.uniform(1.2, 4, 6)
    every = int(rng.integers(25, 120))
    seconds[every::every] *= rng.uniform(1.5, 6)
    return seconds


def _within(share: float, cv: float, length: int, rng: np.random.Generator, noise: str) -> Counter[str]:
    seconds = run_of(rng, noise, cv, length)
    at = int(rng.integers(MARGIN + 10, length - MARGIN))
    seconds[at:] *= 1 + share
    search = find_changes(seconds)
    right = [
        each for each in search.changes if share and abs(each.column - at) <= NEAR and each.share * share > 0
    ]
    tally = Counter({"found": len(right[:1]), "false": bool(len(search.changes) > len(right[:1]))})
    if right:
        tally["off by"] += abs(right[0].column - at)
    if search.resolution is not None and abs(math.log1p(share)) > 1.5 * math.log1p(search.resolution):
        tally["above resolution"] += 1
        tally["above resolution found"] += bool(right)
    means = np.convolve(seconds[60:], np.full(10, 0.1), mode="valid") > 1.1 * seconds[10:60].mean()
    tally["one line false"] += bool(means[: max(0, at - 70) if share else None].any())
    tally["one line found"] += bool(share and means[max(0, at - 60) :].any())
    return tally


def _runs(slower: float, apart: float, earlier: int, rng: np.random.Generator, noise: str) -> Counter[str]:
    scale = rng.uniform(0.1, 20)
    paces = []
    for number in range(earlier + 1):
        seconds = run_of(rng, noise, 0.05, 200)
        # Noise has its own mean, which is the same for all runs.
        seconds *= scale / np.median(seconds) * np.exp(rng.normal(0, apart))
        if number == earlier:
            seconds *= 1 + slower
        table = StepTable(np.arange(2), np.arange(200), np.arange(200), np.tile(seconds, (2, 1)),
                          np.tile(seconds, (2, 1)))  # fmt: skip
        paces.append(pace_of(table, str(number)))
    known = [each for each in paces[:-1] if each is not None]
    found = compare_paces(paces[-1], known)
    one_line = paces[-1].seconds > 1.05 * float(np.median([each.seconds for each in known]))
    return Counter(
        {"found": found.verdict == "slower", "false": found.verdict == "faster", "one line found": one_line}
    )


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a line."""
    draws = document["draws"]
    text = f"found {document.get('found', 0) / draws:.1%} false {document.get('false', 0) / draws:.1%}"
    if document.get("found") and document["kind"] == "within":
        text += f" off by {document.get('off by', 0) / document['found']:.0f} steps"
    one = f"one line found {document.get('one line found', 0) / draws:.1%}"
    return f"{text} · {one} false {document.get('one line false', 0) / draws:.1%}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows: false runs by noise, and what was found in each cell."""
    rows = []
    for cv in NOISES:
        at = f"noise-{100 * cv:.0f}"
        own = [each for each in documents.values() if each["kind"] == "within" and each["at"].startswith(at)]
        if own:
            for title, some, bound in (
                ("runs without a change in which one is told", [e for e in own if not e["share"]], FALSE),
                ("runs with a change told elsewhere, or 20 steps off", [e for e in own if e["share"]], 1.0),
            ):
                if some:
                    counts = [sum(each.get(name, 0) for each in some) for name in ("false", "one line false")]
                    draws = sum(each["draws"] for each in some)
                    rows.append(_row(f"{title}, {at}", counts, draws, bound, enough=False))
            above = [sum(each.get(f"above resolution{more}", 0) for each in own) for more in (" found", "")]
            if above[1]:
                title = f"changes half above the resolution that was told, found, {at}"
                rows.append(_row(title, [above[0], 0], above[1], FOUND, enough=True))
    for name, each in documents.items():
        counts = [each.get("found", 0), each.get("one line found", 0)]
        if each["kind"] == "within" and each["share"]:
            bound = FOUND if each["share"] >= 0.10 and each["at"].startswith("noise-2.") else 0.0
            rows.append(_row(f"found, {name}", counts, each["draws"], bound, enough=True))
        if each["kind"] == "runs":
            calm = each["at"].startswith("apart-1")
            if each["share"] >= 0.10:
                rows.append(_row(f"told slower, {name}", counts, each["draws"], FOUND * calm, enough=True))
            else:
                bound = FALSE if calm and not each["share"] else 1.0
                rows.append(_row(f"told slower, {name}", counts, each["draws"], bound, enough=False))
        if each["kind"] in ("moved", "phases"):
            rows += _course_rows(name, each)
    return rows


def _course_rows(name: str, each: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a cell of `run_courses`: what is told and not so, and what is found."""
    draws, false = each["draws"], [each["false"], 0]
    rows = [_row(f"told although it is not so, {name}", false, draws, FALSE, enough=False)]
    if each["kind"] == "phases":
        rows.append(_row(f"all found with their cost, {name}", [each["found"], 0], draws, FOUND, enough=True))
    elif each["of one"]:
        # What can be seen in so many seconds depends on a series' noise: no bound.
        rows.append(_row(f"all series found, {name}", [each["found"], 0], draws, 0.0, enough=True))
        counts = [each["one found"], 0]
        rows.append(
            _row(f"a series that explains it named, {name}", counts, each["of one"], 0.0, enough=True)
        )
        wrong = [each["one false"], 0]
        rows.append(_row(f"another series said to explain it, {name}", wrong, draws, FALSE, enough=False))
    return rows


def _row(title: str, counts: list[int], of: int, bound: float, *, enough: bool) -> dict[str, Any]:
    interval, (ours, peer) = wilson(counts[0], of), (count / of for count in counts)
    return {
        "name": f"changes: {title}", "ours": ours, "peer": peer, "unit": "share",
        "ratio": ours / peer if peer else 0.0, "bound": bound,
        "holds": ours >= bound if enough else ours <= bound,
        "at least": enough, "interval": interval, "of": of,
    }  # fmt: skip
