"""Who slows a file system, by probes beside the job's own load, in simulated runs.

Truth is drawn: the latency of a quiet file system with noise that has memory and rare spikes; periods when
others slow it; the job's own load (none, bursts, phases, always) and what that does to the latency. A verdict
"cannot tell" is never wrong, and counted.
"""

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from intervals import wilson
from numpy.typing import NDArray

from gipfel_extension.diagnosis.file_system import StorageSeries, judge_storage

DRAWS = 400
MEASURED = (Path(__file__).resolve().parents[2] / "extension" / "gipfel_extension" / "diagnosis",)
_PROBE_S = 20
_Floats = NDArray[np.float64]

#: Cell: the job's load, the factor that it slows the file system by (bounds), and periods of others.
CELLS: Mapping[str, tuple[str, tuple[float, float], str]] = {
    "healthy.light": ("light", (1, 1), "none"),
    "healthy.bursts": ("bursts", (1, 1.5), "none"),
    "healthy.always": ("always", (1, 1.5), "none"),
    "job.bursts": ("bursts", (12, 80), "none"),
    "job.phases": ("phases", (12, 80), "none"),
    "job.always": ("always", (12, 80), "none"),
    "everybody.light": ("light", (1, 1), "periods"),
    "everybody.bursts": ("bursts", (1, 1.5), "periods"),
    "everybody.phases": ("phases", (1, 1.5), "periods"),
    "everybody.always": ("always", (1, 1.5), "periods"),
    "both.bursts": ("bursts", (12, 80), "periods"),
    # A slow link or server, which the job fills with a few MB/s; of FUSE its bytes are known as a bound only.
    "job.slow_link.bursts": ("fuse bursts", (12, 80), "none"),
    "job.slow_link.always": ("fuse always", (12, 80), "none"),
    "job.slow_link.phases": ("fuse phases", (12, 80), "none"),
    "job.slow_link.cached": ("fuse cached", (12, 80), "none"),
    "job.slow_server.bursts": ("nfs bursts", (12, 80), "none"),
    "job.slow_server.always": ("nfs always", (12, 80), "none"),
    "everybody.slow_link.light": ("fuse light", (1, 1), "periods"),
    "everybody.slow_link.bursts": ("fuse bursts", (1, 1.5), "periods"),
    "everybody.slow_link.always": ("fuse always", (1, 1.5), "periods"),
    "healthy.slow_link.bursts": ("fuse bursts", (1, 1.5), "none"),
    # Written after the rules were fixed; look at these with a seed that rules were not tried on.
    "later.healthy.heavy_tails": ("bursts", (1, 2), "tails"),
    "later.healthy.drift": ("bursts", (1, 1.5), "drift"),
    "later.everybody.clockwork": ("bursts", (1, 1.5), "clockwork"),
    "later.everybody.unknown_load": ("unknown", (1, 1), "periods"),
    "later.job.weak": ("bursts", (6, 12), "none"),
    "later.job.heavy_tails": ("bursts", (12, 80), "tails"),
}
#: What must not be said, and how often it may be; what must be found, and how often.
_FALSE, _FOUND = 0.02, 0.90
_TRUTH = {
    "healthy": frozenset[str](),
    "job": frozenset(("job",)),
    "everybody": frozenset(("everybody",)),
    "both": frozenset(("job", "everybody")),
}


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the runs of each cell, each of 15 minutes to 3 hours."""
    return {name: partial(measure, name, seed, draws) for name in CELLS}


def measure(name: str, seed: int, draws: int) -> dict[str, Any]:
    """Judge the runs of a cell; return how often each answer was given."""
    found: dict[str, int] = {}
    opens_told = 0
    for number in range(draws):
        random = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
        judgement = judge_storage(simulate(random, *CELLS[name]))
        found[judgement.slow or "none"] = found.get(judgement.slow or "none", 0) + 1
        opens_told += judgement.many_opens
    return {"draws": draws, "slow": found, "many_opens": opens_told}


def line(document: Mapping[str, Any]) -> str:
    """Return a cell's result as one line."""
    return f"{document['slow']}, many opens {document['many_opens']}"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for what was said wrongly in each cell, and one for what was found where it can be."""
    rows = []
    for name, each in documents.items():
        truth = _TRUTH[name.removeprefix("later.").partition(".")[0]]
        draws = each["draws"]
        wrong = sum(count for answer, count in each["slow"].items() if answer in {"job", "everybody"} - truth)
        low, high = wilson(wrong, draws)
        rows.append(_row(f"{name}.wrong", wrong / draws, high, _FALSE, holds=wrong / draws <= _FALSE))
        # Where the load is unknown or always heavy, nothing but "cannot tell" can be right.
        if truth and not name.endswith((".always", ".phases", ".unknown_load", ".weak", ".cached")):
            right = sum(count for answer, count in each["slow"].items() if answer in truth)
            low, _ = wilson(right, draws)
            rows.append(_row(f"{name}.found", right / draws, low, _FOUND, holds=right / draws >= _FOUND))
    return rows


def simulate(
    random: np.random.Generator, load: str, factor: tuple[float, float], others: str
) -> StorageSeries:
    """Return the probes of a run."""
    size = int(random.integers(45, 540))
    client, _, load = load.rpartition(" ")
    memory = random.uniform(0.0, 0.8)
    noise = _with_memory(random, size, memory) * random.uniform(0.2, 0.6)
    latency = random.uniform(0.4, 3.0) * np.exp(noise)
    latency[random.random(size) < random.uniform(0.0, 0.03)] *= random.uniform(5, 40)
    heavy = _load(random, size, "bursts" if load == "cached" else load)
    opens = np.where(heavy, random.uniform(1200, 15000) * np.exp(0.2 * random.standard_normal(size)), 0.0)
    opens += random.uniform(0, 60) * random.random(size)
    # The effect of a load begins within the probe's interval, and its end is worked off in the next.
    own = np.convolve(heavy, [0.75, 0.25])[:size] * np.log(random.uniform(*factor))
    latency *= np.exp(own * np.exp(0.15 * random.standard_normal(size)))
    latency *= _others(random, size, others)
    if load == "unknown":
        opens[:] = np.nan
        return StorageSeries("/scratch", _times(size), latency, opens, random.uniform(1e4, 1e6, size))
    if client:
        return _on_slow_link(random, latency, heavy, client, cached=load == "cached")
    return StorageSeries("/scratch", _times(size), latency, opens, opens * random.uniform(1e4, 1e5))


def _on_slow_link(
    random: np.random.Generator, latency: _Floats, heavy: NDArray[np.bool_], client: str, *, cached: bool
) -> StorageSeries:
    """Return the probes of a mount that a few MB/s fill.

    Where most of the data is ``cached``, reads are quick and many while nothing is asked of the mount.
    """
    size = len(latency)
    rate = np.exp(random.uniform(np.log(2e6), np.log(60e6))) * np.exp(0.1 * random.standard_normal(size))
    idle = random.uniform(1e8, 2e9) if cached else random.uniform(0, 2e5)
    moved = np.where(heavy, rate, idle * random.random(size))
    opens = np.where(heavy, random.uniform(0, 40), 0.0) * random.random(size)
    # A quarter of what is read besides comes from connections and caches.
    most = moved * random.uniform(1.0, 1.25)
    if client == "nfs":
        return StorageSeries("/scratch", _times(size), latency, opens, moved, most=moved)
    return StorageSeries("/scratch", _times(size), latency, opens, np.zeros(size), most=most)


def _others(random: np.random.Generator, size: int, others: str) -> _Floats:
    """Return the factor by which others slow each probe."""
    where = np.arange(size)
    if others == "periods":
        return np.where(_periods(random, size), random.uniform(15, 100), 1.0)
    if others == "tails":
        # A tenth of the probes meet a busy server.
        return np.where(random.random(size) < 0.1, np.exp(np.abs(1.2 * random.standard_t(3, size))), 1.0)
    if others == "drift":
        return np.asarray(
            np.exp(random.uniform(0.3, 0.8) * np.sin(2 * np.pi * where / random.uniform(size / 2, size)))
        )
    if others == "clockwork":
        # As regular as the job's own bursts, with another period.
        period = int(random.integers(8, 40))
        return np.where((where + int(random.integers(period))) % period < max(4, period // 3), 40.0, 1.0)
    return np.ones(size)


def _times(size: int) -> NDArray[np.int64]:
    return (1_800_000_000 + _PROBE_S * np.arange(size, dtype=np.int64)) * 10**9


def _load(random: np.random.Generator, size: int, load: str) -> NDArray[np.bool_]:
    where = np.arange(size)
    if load in ("light", "unknown"):
        return np.zeros(size, dtype=np.bool_)
    if load == "always":
        return where >= int(random.integers(0, 3))
    if load == "phases":
        # One beginning, and perhaps one end.
        first = int(random.integers(size // 5, size // 2))
        last = int(random.integers(first + size // 5, size + size // 3))
        return (where >= first) & (where < last)
    period = int(random.integers(9, max(10, min(60, size // 4))))
    busy = max(3, int(period * random.uniform(0.25, 0.5)))
    busy = min(busy, period - 5)
    return (where + int(random.integers(period))) % period < busy


def _periods(random: np.random.Generator, size: int) -> NDArray[np.bool_]:
    """Return when others slow the file system: a third of the time in several periods."""
    slow = np.zeros(size, dtype=np.bool_)
    for _ in range(int(random.integers(1, 5))):
        length = int(size * random.uniform(0.1, 0.3))
        start = int(random.integers(0, max(1, size - length)))
        slow[start : start + length] = True
    return slow


def _with_memory(random: np.random.Generator, size: int, memory: float) -> _Floats:
    values = random.standard_normal(size)
    for place in range(1, size):
        values[place] = memory * values[place - 1] + np.sqrt(1 - memory**2) * values[place]
    return values


def _row(name: str, ours: float, limit: float, bound: float, *, holds: bool) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "peer": limit,
        "unit": "share, 95 %",
        "ratio": ours,
        "bound": bound,
        "holds": holds,
    }
