"""Detection and false-alarm rates of the diagnosis of slow ranks, nodes and stages.

A cell is a fault in jobs of a size, at a noise from step to step, with roles known or not. Rates are per
window of 20 steps. Beside it stand two rules of one line on medians of such windows: ``fixed`` (5 % above the
median of the ranks of equal role; of all ranks where roles are unknown) and ``nvrx`` (the score of NVIDIA's
resiliency extension, the least median of all ranks over a rank's own, below 0.75).
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from intervals import wilson
from step_tables import LASTING, LAYOUTS, NOISE, Job

from gipfel_extension.diagnosis import Roles, Verdict, diagnose

DRAWS = 60
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "diagnosis",)
SIZES, NOISES, SHARES = tuple(LAYOUTS), (0.02, 0.05, 0.10), (0.05, 0.10, 0.20, 0.30)
FALSE, FOUND = 0.001, 0.95
WARM_UP, WINDOW, BASELINE, HEALTHY = 10, 20, 50, 200
#: Verdicts that name no rank.
_BLAMELESS = {"unknown", "change", "uneven_samples", "link"}

Draw = Callable[[np.random.Generator, str], tuple[Job, set[int], int | None]]


def _healthy(size: int, cv: float) -> Draw:
    def draw(rng: np.random.Generator, noise: str) -> tuple[Job, set[int], int | None]:
        return Job.draw(rng, size, WARM_UP + HEALTHY, noise, cv), set(), None

    return draw


def _slow(size: int, cv: float, share: float, *, before: int = 0, steady: bool = False) -> Draw:
    """Return jobs that end 20 steps after a rank became slow; `before` healthy ones come first."""

    def draw(rng: np.random.Generator, noise: str) -> tuple[Job, set[int], int | None]:
        job = Job.draw(rng, size, WARM_UP + before + WINDOW, noise, cv)
        return job, {job.slow_rank(share, WARM_UP + before if before else 0, steady=steady)}, None

    return draw


def _node(size: int, cv: float, share: float) -> Draw:
    def draw(rng: np.random.Generator, noise: str) -> tuple[Job, set[int], int | None]:
        job = Job.draw(rng, size, WARM_UP + WINDOW, noise, cv)
        return job, set(job.slow_node(share, 0)), None

    return draw


def _stage(size: int, cv: float, share: float, *, onset: int = 0) -> Draw:
    def draw(rng: np.random.Generator, noise: str) -> tuple[Job, set[int], int | None]:
        while True:
            job = Job.draw(rng, size, WARM_UP + onset + 2 * WINDOW, noise, cv)
            if job.layout[2] > 1:
                return job, set(), job.heavy_stage(share, WARM_UP + onset if onset else 0)

    return draw


def _samples(size: int, cv: float, spread: float) -> Draw:
    def draw(rng: np.random.Generator, noise: str) -> tuple[Job, set[int], int | None]:
        job = Job.draw(rng, size, WARM_UP + HEALTHY // 2, noise, cv)
        job.uneven_samples(spread)
        return job, set(), None

    return draw


def _draws() -> dict[str, Draw]:
    found: dict[str, Draw] = {}
    for size in SIZES:
        for cv in NOISES:
            at = f"{size}.noise-{100 * cv:.0f}"
            found[f"healthy.{at}"] = _healthy(size, cv)
            for share in SHARES:
                found[f"slow-{100 * share:.0f}.{at}"] = _slow(size, cv, share)
                found[f"became-{100 * share:.0f}.{at}"] = _slow(size, cv, share, before=BASELINE)
            found[f"steady-10.{at}"] = _slow(size, cv, 0.10, steady=True)
            found[f"steadily-became-10.{at}"] = _slow(size, cv, 0.10, before=BASELINE, steady=True)
            found[f"node-20.{at}"] = _node(size, cv, 0.20)
            for share in SHARES[:3]:
                found[f"stage-{100 * share:.0f}.{at}"] = _stage(size, cv, share)
            found[f"stage-later-20.{at}"] = _stage(size, cv, 0.20, onset=BASELINE)
            if cv == min(NOISES):
                found[f"samples-20.{at}"] = _samples(size, cv, 0.20)
    return found


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each cell, named by fault, size, noise, and whether roles are known."""
    return {
        f"{name}.{roles}": partial(measure, name, roles, seed, draws)
        for name in _draws()
        for roles in ("roles", "no-roles")
    }


def measure(name: str, roles: str, seed: int, draws: int) -> dict[str, Any]:
    """Count one cell."""
    draw, known = _draws()[name], roles == "roles"
    tally: Counter[str] = Counter()
    # Large jobs take long; of those that a bound is for, the rate is wanted more exactly.
    draws = max(1, draws * (2 if ".1024." in name else 3) * (3 if "-10." in name and known else 1) // 3)
    for number in range(draws):
        rng = np.random.default_rng((seed, zlib.crc32(f"{name}.{roles}".encode()), number))
        noise = tuple(NOISE)[number % len(NOISE)]
        job, slow, stage = draw(rng, noise)
        found = diagnose(job.table(), job.roles() if known else Roles())
        before = tally["found"]
        _count(tally, found.verdicts, slow, stage)
        if noise not in LASTING:
            tally["independent"] += 1
            tally["independent found"] += tally["found"] - before
        tally["windows"] += (job.work.shape[1] - WARM_UP) // WINDOW
        for rule, accused in one_line(job, known=known).items():
            tally[f"{rule} false"] += sum(bool(each - slow) for each in accused)
            tally[f"{rule} found"] += bool(slow) and slow <= accused[-1] and not accused[-1] - slow
    fault, size, noise = name.split(".")
    return {"fault": fault, "size": int(size), "noise": int(noise.removeprefix("noise-")) / 100,
            "roles": known, "draws": draws, **tally}  # fmt: skip


def _count(tally: Counter[str], verdicts: tuple[Verdict, ...], slow: set[int], stage: int | None) -> None:
    blaming = [each for each in verdicts if each.kind not in _BLAMELESS]
    right = 0
    for each in blaming:
        if slow:
            correct = set(each.ranks) <= slow and each.kind == "slow_rank"
            # A node is named once and as a node.
            whole = set(each.ranks) == slow and (len(slow) == 1 or str(each.unit).startswith("node "))
            right += whole
        else:
            correct = whole = each.kind == "uneven_stage" and each.stage == stage and not each.ranks
            right += whole
        tally["false"] += not correct
    tally["found"] += right == 1
    kinds = {each.kind for each in verdicts}
    tally["unknown"] += "unknown" in kinds
    tally["uneven samples"] += "uneven_samples" in kinds


def one_line(job: Job, *, known: bool) -> dict[str, list[set[int]]]:
    """Return the ranks that two rules of one line accuse, by window of 20 steps."""
    work = job.work[:, WARM_UP:]
    count = work.shape[1] // WINDOW
    medians = np.median(work[:, -count * WINDOW :].reshape(len(work), count, WINDOW), axis=2)
    usual = np.repeat(np.median(medians, axis=0)[None, :], len(work), axis=0)
    if known:
        for group in job.roles().groups(range(len(work))):
            usual[group] = np.median(medians[group], axis=0)
    accused = {"fixed": medians > 1.05 * usual, "nvrx": medians.min(axis=0) / medians < 0.75}
    return {
        rule: [set(np.flatnonzero(column).tolist()) for column in found.T] for rule, found in accused.items()
    }


def line(document: Mapping[str, Any]) -> str:
    """Return one cell in a line."""
    windows, draws = document["windows"], document["draws"]
    text = f"false {document.get('false', 0)}/{windows} found {document.get('found', 0) / draws:.1%}"
    text += f" unknown {document.get('unknown', 0) / draws:.1%}"
    text += f" uneven samples {document.get('uneven samples', 0) / draws:.1%}"
    for rule in ("fixed", "nvrx"):
        false, right = document.get(f"{rule} false", 0), document.get(f"{rule} found", 0) / draws
        text += f" · {rule} false {false}, found {right:.0%}"
    return text


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows: false accusations by size and roles over all cells, and what was found in each cell."""
    rows = []
    for size in SIZES:
        for known in (True, False):
            own = [each for each in documents.values() if (each["size"], each["roles"]) == (size, known)]
            windows = sum(each["windows"] for each in own)
            if windows:
                title = f"false accusations, {size} ranks, roles {'known' if known else 'unknown'}"
                rules = ("false", "fixed false", "nvrx false")
                counts = [sum(each.get(rule, 0) for each in own) for rule in rules]
                rows.append(_row(title, counts, windows, FALSE, enough=False))
    for name, each in documents.items():
        if each["fault"] == "healthy":
            continue
        count = "uneven samples" if each["fault"].startswith("samples") else "found"
        share = int(each["fault"].rpartition("-")[2]) / 100
        sure = each["roles"] and share >= 0.10 and each["noise"] <= 0.05 and "later" not in each["fault"]
        counts = [each.get(rule, 0) for rule in (count, "fixed found", "nvrx found")]
        rows.append(_row(f"found, {name}", counts, each["draws"], 0.0, enough=True))
        if sure and count == "found":
            # What a bound is set for: noise that is new in each step.
            part = each["independent"] / each["draws"]
            counts = [each.get("independent found", 0), *(part * count for count in counts[1:])]
            title = f"found, noise new in each step, {name}"
            rows.append(_row(title, counts, each["independent"], FOUND, enough=True))
    return rows


def _row(title: str, counts: Sequence[float], of: int, bound: float, *, enough: bool) -> dict[str, Any]:
    interval, (ours, fixed, nvrx) = wilson(int(counts[0]), of), (count / of for count in counts)
    return {
        "name": f"stragglers: {title}", "ours": ours, "peer": fixed, "nvrx": nvrx, "unit": "share",
        "ratio": ours / fixed if fixed else 0.0, "bound": bound,
        "holds": ours >= bound if enough else ours <= bound,
        "at least": enough, "interval": interval, "of": of,
    }  # fmt: skip
