"""Compare the samples per second that a run needs with a trial; find the cheapest change that suffices.

A trial measures how fast a data set is read in each format and with several numbers of workers.
"""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from gipfel_cluster.model import Frozen

from ..storage import read_storage
from ..telemetry.files import read_json
from ..telemetry.user_metrics import UserMetric, UserMetrics, read_metrics
from .trial import Rate, Trial

#: Names of logged metrics that count samples per second.
_RATE = re.compile(
    r"(?:^|[/_ ])(?:samples?|images?|examples?|sequences?)(?:[/_ ]*(?:per|/)[_ ]*)(?:s|sec|seconds?)$", re.I
)
_MAX_SCORE_BYTES = 16 << 20
#: If the ranks' values differ by less than this share, each rank has logged the rate of the whole job.
_SAME = 0.02
#: A format suffices if its measured rate is at least this many times the demand.
_MARGIN = 1.1
_MOST_LOSS = 95.0


class Demand(Frozen):
    """Samples per second that a run needs.

    Parameters
    ----------
    eaten
        Samples per second that the GPUs on all nodes consumed.
    needed
        Samples per second that they would consume without waiting for input.
    nodes
        Number of nodes among which the demand is divided.
    input_loss
        Percentage of the time in which the GPUs waited for input; None if unknown.
    source
        Text for people that says what these numbers were computed from.
    """

    eaten: float
    needed: float
    nodes: int
    input_loss: float | None
    source: str

    @property
    def per_node(self) -> float:
        """Samples per second that each node needs."""
        return self.needed / self.nodes


class Advice(Frozen):
    """The cheapest change that suffices; `rate` is its measurement, None if no tried format suffices."""

    rate: Rate | None
    sentence: str


def demand_of(run: Path, sample_bytes: float) -> Demand | None:
    """Return what a run needs; None if neither its samples per second nor its reads were recorded.

    Parameters
    ----------
    sample_bytes
        Mean size of a sample in bytes; converts bytes read to samples if no metric counts samples.
    """
    loss = _input_loss(run)
    stretch = 1.0 / (1.0 - min(loss or 0.0, _MOST_LOSS) / 100.0)
    storage = read_storage(run)
    nodes = len({each.node for each in storage.periods}) if storage else 0
    logged = _logged_rate(read_metrics(run))
    if logged is not None:
        name, rate, metric_nodes = logged
        return Demand(
            eaten=rate, needed=rate * stretch, nodes=max(1, nodes, metric_nodes), input_loss=loss,
            source=f"the logged metric {name!r}",
        )  # fmt: skip
    if storage is None or not storage.periods or not sample_bytes:
        return None
    by_node: dict[str, list[tuple[float, float]]] = {}
    for each in storage.periods:
        read = sum(rank.read for rank in each.ranks)
        by_node.setdefault(each.node, []).append((read, each.seconds))
    total = sum(
        sum(read * seconds for read, seconds in own) / sum(seconds for _, seconds in own)
        for own in by_node.values()
    )
    if total < sample_bytes:
        return None
    rate = total / sample_bytes
    return Demand(
        eaten=rate, needed=rate * stretch, nodes=len(by_node), input_loss=loss,
        source="the bytes that its processes read",
    )  # fmt: skip


def advise(trial: Trial, demand: Demand, memory_bytes: float | None = None) -> Advice:
    """Return the cheapest change that gives each node the samples it needs, judging by cold measurements.

    Parameters
    ----------
    memory_bytes
        Free memory of this node in bytes; the data set may fit in it.
    """
    wanted = demand.per_node * _MARGIN
    own = trial.rates[0].format if trial.rates else ""
    need = f"{demand.per_node:,.0f} samples/s per node"
    for each in _by_cost(trial.rates, own):
        if each.cold is not None and each.cold >= wanted:
            return Advice(rate=each, sentence=f"{_change(each, own)} {_suffices(each.cold, need)}")
    fits = memory_bytes is not None and trial.bytes < 0.8 * memory_bytes
    warm = next((each for each in _by_cost(trial.rates, own) if (each.warm or 0.0) >= wanted), None)
    if warm is not None and warm.warm is not None:
        where = (
            "The data set fits into the free memory of this node, so samples are warm from the second epoch "
            "on. For the first, copy it to memory or to a node-local disk."
            if fits
            else "The data set does not fit into free memory: copy it to a node-local disk."
        )
        return Advice(
            rate=warm,
            sentence=f"Only warm (cached) samples are read fast enough: {_change(warm, own)} "
            f"{_suffices(warm.warm, need)} {where}",
        )
    best = max(trial.rates, key=lambda each: each.cold or 0.0, default=None)
    if best is None or not best.cold:
        return Advice(rate=None, sentence="The trial has no measurement of cold samples.")
    return Advice(
        rate=None,
        sentence=f"No tried format gives {need}: the fastest is {best.format} with {best.workers} workers, "
        f"{best.cold:,.0f} samples/s. Read more bytes at once, or prepare smaller samples before the run.",
    )


def _by_cost(rates: Sequence[Rate], own: str) -> list[Rate]:
    """Return the rates, cheapest change first: more workers, then a packed file, then shards (other code)."""
    order = [own, "squashfs", "shards", "files"]
    return sorted(rates, key=lambda each: (order.index(each.format), each.workers))


def _change(each: Rate, own: str) -> str:
    workers = "1 worker" if each.workers == 1 else f"{each.workers} workers"
    if each.format == own:
        return f"{workers}, as the data is now:"
    if each.format == "squashfs":
        return f"Packing (gipfel data pack DATA OUT.sqsh, no change of code) and {workers}:"
    return f"Shards (gipfel data pack DATA OUT --to webdataset, and a loader that streams) and {workers}:"


def _suffices(rate: float, need: str) -> str:
    return f"{rate:,.0f} samples/s, where {need} are needed."


def _input_loss(run: Path) -> float | None:
    """Return the percentage of the time in which the GPUs of a scored run waited for input."""
    try:
        loss = read_json(run / "score.json", _MAX_SCORE_BYTES)["losses"]["input"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(loss) if isinstance(loss, int | float) and 0 <= loss <= 100 else None


def _logged_rate(metrics: UserMetrics) -> tuple[str, float, int] | None:
    """Return name, samples per second of the job, and number of nodes of the metric with the highest rate."""
    by_name: dict[str, list[UserMetric]] = {}
    for each in metrics.series:
        if _RATE.search(each.name) and len(each.values):
            by_name.setdefault(each.name, []).append(each)
    found = []
    for name, own in by_name.items():
        rates = [statistics.median(float(value) for value in each.values) for each in own]
        rates = [rate for rate in rates if rate > 0]
        if not rates:
            continue
        same = max(rates) - min(rates) <= _SAME * max(rates)
        total = max(rates) if same and len(rates) > 1 else sum(rates)
        found.append((name, total, len({each.node for each in own})))
    return max(found, key=lambda each: each[1], default=None)
