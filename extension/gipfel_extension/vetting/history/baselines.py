"""What a check usually measures on a GPU model: medians over what was kept."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from gipfel_cluster.model import Frozen

from ..model import Verdict
from .entry import HistoryEntry


class Baseline(Frozen):
    """The usual figure of a check on a GPU model.

    ``spread`` is the median distance to the median (MAD), not scaled; ``nodes`` are how many different ones
    it was measured on.
    """

    type: str
    check: str
    gpu_model: str
    unit: str
    median: float
    spread: float
    nodes: int
    samples: int


def baselines_of(entries: Iterable[HistoryEntry], *, least_nodes: int = 1) -> tuple[Baseline, ...]:
    """One baseline per check, GPU model and unit, from figures of verdicts that passed.

    Each node counts once, with its own median: a node that is vetted hourly must not be the baseline.
    """
    groups: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in entries:
        if each.verdict is Verdict.PASS and each.figure is not None:
            groups[each.type, each.check, each.gpu_model, each.unit][each.node].append(each.figure)
    found = []
    for (kind, check, model, unit), nodes in sorted(groups.items()):
        if len(nodes) < least_nodes:
            continue
        figures = [median(values) for values in nodes.values()]
        middle = median(figures)
        found.append(
            Baseline(
                type=kind,
                check=check,
                gpu_model=model,
                unit=unit,
                median=middle,
                spread=median(abs(each - middle) for each in figures),
                nodes=len(nodes),
                samples=sum(map(len, nodes.values())),
            )
        )
    return tuple(found)


def usual_figure(baselines: Iterable[Baseline], check: str, gpu_model: str, unit: str) -> float | None:
    """The median of one check on one model, in its unit; None where nothing is stored."""
    found = (
        each for each in baselines if (each.check, each.gpu_model, each.unit) == (check, gpu_model, unit)
    )
    return next((each.median for each in found), None)
