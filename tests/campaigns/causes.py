"""Error rates of score, causes and advice on workload shapes with a known cause.

A cell is a shape, drawn several times with random sizes, noise and phase, sampled at 10 Hz and at 1 Hz. A
draw is *wrong* if the bottleneck is not an accepted one, a loss is outside of its bounds, or unwanted advice
is given; it is *right* if the bottleneck is accepted, and otherwise "cannot tell". ``peer`` in the rows is a
simple rule for comparison: the largest of the means of pipes, memory, idle engine and SMs without work.

A third of the first shapes, chosen by a checksum of their names, was held out while rules were tuned. The
shapes in ``workloads/later.py`` were written after that, and no rule was changed because of them.
"""

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from intervals import wilson
from workloads import SHAPES, Shape, later

from gipfel_extension.saturation import JobScore, advise, score_table
from gipfel_extension.telemetry.sample import SampleTable

DRAWS = 50
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "saturation",)
FINE_S, COARSE_S, TRUTH_S = 0.1, 1.0, 0.01
#: Points by which noise alone changes a score.
_NOISE = 1.0
WRONG, RIGHT, HELD = 0.02, 0.85, 0.95


def held_out(shape: Shape) -> str:
    """Return "later" or "held out" for a shape with which no rule was tuned, else an empty string."""
    if shape.draw.__module__ == later.__name__:
        return "later"
    return "held out" if zlib.crc32(shape.name.encode()) % 3 == 0 else ""


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each shape."""
    return {name: partial(measure, shape, seed, draws) for name, shape in SHAPES.items()}


def measure(shape: Shape, seed: int, draws: int) -> dict[str, Any]:
    """Return the counts of one shape."""
    tally = {
        "draws": draws,
        "right": 0,
        "wrong": 0,
        "cannot tell": 0,
        "peer right": 0,
        "in range": 0,
        "coarse wrong": 0,
    }
    seen: dict[str, int] = {}
    widths = []
    for number in range(draws):
        rng = np.random.default_rng((seed, zlib.crc32(shape.name.encode()), number))
        job = shape.draw(rng)
        table = job.sampled(FINE_S)
        scored = score_table(table)
        kind, what = judge(shape, table, scored)
        tally[kind] += 1
        seen[what] = seen.get(what, 0) + 1
        tally["peer right"] += _peer(table) in shape.accepted
        coarse = score_table(job.sampled(COARSE_S)).total
        truth = score_table(job.sampled(TRUTH_S)).total
        assert coarse is not None
        assert truth is not None
        tally["in range"] += coarse.lower_bound - _NOISE <= truth.score <= coarse.upper_bound + _NOISE
        tally["coarse wrong"] += coarse.bottleneck not in (*shape.accepted, "unexplained", None)
        widths.append(coarse.upper_bound - coarse.lower_bound)
    return {
        **tally,
        "held out": held_out(shape),
        "seen": seen,
        "width": round(float(np.mean(widths)), 1),
    }


def judge(shape: Shape, table: SampleTable, job: JobScore) -> tuple[str, str]:
    """Return ``right``, ``wrong`` or ``cannot tell`` for one draw, and the result that led to it."""
    total = job.total
    if total is None:
        return "cannot tell", "no score"
    out_of_bounds = [
        loss for loss, (least, most) in shape.bounds.items() if not least <= total.losses[loss] <= most
    ]
    advice = [each.rule for each in advise(table, job) if each.rule in shape.unwanted_advice]
    if out_of_bounds or advice:
        return "wrong", " ".join((*(f"{loss}={total.losses[loss]:.0f}" for loss in out_of_bounds), *advice))
    named = total.bottleneck
    if named in shape.accepted or (named is None and "unexplained" in shape.accepted):
        return "right", named or "none named"
    return ("cannot tell" if named in (None, "unexplained") else "wrong"), named or "none named"


def _peer(table: SampleTable) -> str:
    """Return the largest mean of pipes, memory, idle engine and SMs without work, as on a dashboard."""
    means: dict[str, list[float]] = {"compute": [], "memory": [], "idle": [], "launch": []}
    for gpu in table.gpus:
        columns = table[gpu.uuid]
        pipes = [columns[f"PIPE_{pipe}_ACTIVE"] for pipe in ("TENSOR", "FP64", "FP32", "FP16")]
        engine = columns["GR_ENGINE_ACTIVE"]
        means["compute"].append(float(np.nanmean(np.maximum.reduce(pipes))))
        means["memory"].append(float(np.nanmean(columns["DRAM_ACTIVE"])))
        means["idle"].append(1.0 - float(np.nanmean(engine)))
        means["launch"].append(float(np.nanmean(np.maximum(0.0, engine - columns["SM_ACTIVE"]))))
    return max(means, key=lambda name: float(np.mean(means[name])))


def line(document: Mapping[str, Any]) -> str:
    """Return a cell's document as one line of text."""
    said = ", ".join(
        f"{what} {count}" for what, count in sorted(document["seen"].items(), key=lambda each: -each[1])
    )
    kinds = " ".join(f"{kind} {document[kind]}" for kind in ("right", "wrong", "cannot tell"))
    return f"{kinds} · in range {document['in range']} · {said}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows for all shapes, for those held out, and for those written last."""
    rows = []
    for title, chosen in (
        ("all shapes", list(documents.values())),
        ("shapes held out", [each for each in documents.values() if each["held out"] == "held out"]),
        ("shapes written last", [each for each in documents.values() if each["held out"] == "later"]),
    ):
        draws = sum(each["draws"] for each in chosen)
        if not draws:
            continue
        for kind, bound, enough in (("wrong", WRONG, False), ("right", RIGHT, True)):
            count = sum(each[kind] for each in chosen)
            peer = sum(each["peer right"] for each in chosen) / draws
            peer = peer if enough else 1.0 - peer
            share = count / draws
            rows.append(
                {
                    "name": f"causes: {kind} of {title} ({len(chosen)})",
                    "ours": share,
                    "peer": peer,
                    "unit": "share",
                    "ratio": share / peer if peer else 0.0,
                    "bound": bound,
                    "holds": share >= bound if enough else share <= bound,
                    "interval": wilson(count, draws),
                }
            )
        within = sum(each["in range"] >= 0.95 * each["draws"] for each in chosen) / len(chosen)
        rows.append(
            {
                "name": f"causes: range at {COARSE_S:g} s holds the score at {TRUTH_S:g} s, {title}",
                "ours": within,
                "peer": 0.0,
                "unit": "share",
                "ratio": 0.0,
                "bound": HELD,
                "holds": within >= HELD,
                "mean width": float(np.mean([each["width"] for each in chosen])),
            }
        )
        coarse = sum(each["coarse wrong"] for each in chosen) / draws
        rows.append(
            {
                "name": f"causes: wrong at {COARSE_S:g} s, {title}",
                "ours": coarse,
                "peer": 0.0,
                "unit": "share",
                "ratio": 0.0,
                "bound": WRONG,
                "holds": coarse <= WRONG,
            }
        )
    return rows
