"""Level of each resource of one GPU in each sample: its use as a fraction of what the resource can reach."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import Columns
from .settings import HOST_LINKS, LINKS, PIPES, RESOURCES, Ceilings, Thresholds, Weights

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Pipes that both DCGM and GPM measure; only these count for the confidence.
_EXPECTED_PIPES = PIPES[:4]
_FRACTIONS = (*PIPES, "DRAM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL", "SM_ACTIVE")

#: Rounding may lift a fraction slightly above 1; a value above this is not a fraction.
_MAX_FRACTION = 1.05
#: If a larger share of a metric's samples are not fractions, the whole metric counts as missing: it may be in
#: per cent.
_FAULTY_SHARE = 0.01


@dataclass(frozen=True)
class Levels:
    """One GPU's levels; arrays have one value per sample, NaN where unknown.

    Parameters
    ----------
    resources
        ``compute``, ``memory`` and ``interconnect``: level over practical ceiling, weighted, from 0 to 1.
        Compute is what the pipes did over what they could have done at the GPU's maximum clock.
    links
        Rate of each link over its ceiling, unweighted; only the links that the GPU model has.
    pipes, math
        Activity of the busiest pipe at the current clock; the same without the integer pipe.
    clock
        SM clock over the GPU's maximum; 1 where either is unknown.
    engine, active
        ``GR_ENGINE_ACTIVE`` (or, where it is missing, ``GPU_UTIL``) and ``SM_ACTIVE``.
    saturation
        The highest level of the resources; NaN where the sample can't be scored.
    lower_bound, upper_bound
        Bounds of the true saturation if there are phases shorter than the interval: the mean of the highest
        level is at least each resource's mean, and at most the sum of these means or the engine's activity.
    binding
        The resource with the highest level, as an index into ``RESOURCES``.
    points, binding_share, sequential_points
        By resource: the saturation where its level was the highest; the share of the sample in which it was
        the highest and above the binding threshold; its part of `upper_bound`, which assumes that resources
        are loaded one after the other. They add up to `saturation`, at most 1, and `upper_bound`.
    recorded_parts
        Columns ``SCORE_*`` that the recorder computed from finer samples; `saturation` and the other fields
        are then derived from them. Empty if there are no such columns; NaN in samples without values.
    known
        True where the sample can be scored: compute or memory is known, and engine or SM activity.
    completeness
        Share of the expected metrics that the scored samples hold.
    faulty
        Metrics whose values are not fractions; they count as missing.
    """

    time_ns: NDArray[np.int64]
    resources: Mapping[str, Floats]
    links: Mapping[str, Floats]
    pipes: Floats
    math: Floats
    clock: Floats
    engine: Floats
    active: Floats
    saturation: Floats
    lower_bound: Floats
    upper_bound: Floats
    binding: NDArray[np.int64]
    points: Mapping[str, Floats]
    binding_share: Mapping[str, Floats]
    sequential_points: Mapping[str, Floats]
    recorded_parts: Mapping[str, Floats]
    known: Flags
    completeness: float
    faulty: tuple[str, ...] = ()


def column(columns: Columns, metric: str) -> Floats:
    """Return a metric's values; NaN where it is missing, infinite or negative."""
    recorded = columns.get(metric)
    if recorded is None:
        return np.full(len(columns["time_ns"]), np.nan)
    values = np.asarray(recorded, np.float64)
    return np.where(np.isfinite(values) & (values >= 0), values, np.nan)


def known_mean(values: Floats) -> float | None:
    """Return the mean of the known values; None where there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def fractions(columns: Columns, metric: str) -> Floats:
    """Return a metric's values from 0 to 1; NaN where a value is above 1.05, all NaN where many are."""
    values = column(columns, metric)
    above = values > _MAX_FRACTION
    if above.sum() > _FAULTY_SHARE * np.isfinite(values).sum():
        return np.full(len(values), np.nan)
    return np.minimum(1.0, np.where(above, np.nan, values))


class _Measured:
    """Values from which the levels of a GPU's samples are derived; missing resources are -1 in ``filled``."""

    def __init__(self, columns: Columns, ceilings: Ceilings, weights: Weights) -> None:
        self.fractions = {metric: fractions(columns, metric) for metric in _FRACTIONS}
        self.clock = _clock(columns, ceilings)
        self.pipes = {
            metric: _over_ceiling(self.fractions[metric], ceilings.pipes.get(metric, 1.0)) for metric in PIPES
        }
        self.busiest = _highest(list(self.pipes.values()))
        self.active = self.fractions["SM_ACTIVE"]
        engine = self.fractions["GR_ENGINE_ACTIVE"]
        self.engine = np.where(np.isnan(engine), self.fractions["GPU_UTIL"], engine)
        self.links = {
            link: _over_ceiling(_highest([column(columns, metric) for metric in LINKS[link]]), rate)
            for link, rate in ceilings.links.items()
        }
        unknown = np.full(len(self.active), np.nan)
        self.raw = {
            "compute": self.busiest * self.clock,
            "memory": _over_ceiling(self.fractions["DRAM_ACTIVE"], ceilings.memory),
            "interconnect": _highest([unknown, *_counted_links(self.links, self.active)]),
        }
        self.resources = {name: np.minimum(1.0, self.raw[name] * weights.of(name)) for name in RESOURCES}
        self.known = (np.isfinite(self.raw["compute"]) | np.isfinite(self.raw["memory"])) & (
            np.isfinite(self.engine) | np.isfinite(self.active)
        )
        stacked = np.stack([self.resources[name] for name in RESOURCES])
        self.filled = np.where(np.isnan(stacked), -1.0, stacked)
        self.saturation = np.where(self.known, self.filled.max(axis=0), np.nan)


def saturation_of(columns: Columns, ceilings: Ceilings, weights: Weights) -> Floats:
    """Return the saturation of a GPU's samples, as in `Levels`, but only from values that the GPU counted."""
    return _Measured(columns, ceilings, weights).saturation


def levels_of(
    columns: Columns, ceilings: Ceilings, weights: Weights, *, binding_threshold: float = Thresholds().binding
) -> Levels:
    """Return the levels of a GPU's samples.

    Parameters
    ----------
    binding_threshold
        Level from which the resource with the highest level counts as the binding one.
    """
    measured = _Measured(columns, ceilings, weights)
    resources, links, known = measured.resources, measured.links, measured.known
    engine, active, saturation = measured.engine, measured.active, measured.saturation
    running = np.fmax(np.fmax(engine, active), saturation)
    upper_bound = np.where(known, np.minimum(running, np.maximum(0.0, measured.filled).sum(axis=0)), np.nan)
    binding = measured.filled.argmax(axis=0)
    lower_bound = np.where(
        known, _lower_bound(resources, measured.fractions["DRAM_ACTIVE"], links, active, weights), np.nan
    )
    parts = _recorded_parts(columns, weights, known)
    points, bound, sequential = _by_resource(
        resources, saturation, upper_bound, binding, parts, binding_threshold
    )
    if parts:
        saturation, upper_bound = (np.sum(list(each.values()), axis=0) for each in (points, sequential))
        upper_bound = np.maximum(upper_bound, saturation)
        binding = np.nan_to_num(np.stack(list(points.values()))).argmax(axis=0)
    return Levels(
        columns["time_ns"],
        resources,
        links,
        measured.busiest,
        _highest([measured.pipes[metric] for metric in _EXPECTED_PIPES]),
        measured.clock,
        engine,
        active,
        saturation,
        np.minimum(saturation, recorded_or(parts, "SCORE_LOWER_BOUND", lower_bound)),
        upper_bound,
        binding,
        points,
        bound,
        sequential,
        parts,
        known,
        _completeness(measured.pipes, measured.raw, engine, active, known),
        tuple(
            metric
            for metric, values in measured.fractions.items()
            if not np.isfinite(values).any() and np.isfinite(column(columns, metric)).any()
        ),
    )


def recorded_or(parts: Mapping[str, Floats], name: str, computed: Floats) -> Floats:
    """Return the values that the recorder computed from finer samples; `computed` where it has none."""
    recorded = parts.get(name)
    return computed if recorded is None else np.where(np.isfinite(recorded), recorded, computed)


def _recorded_parts(columns: Columns, weights: Weights, known: Flags) -> Mapping[str, Floats]:
    """Return the columns ``SCORE_*``, each divided by the share of its second that was scored.

    Empty if the weights are not those with which the recorder computed them. NaN in seconds that are not
    `known`.
    """
    if weights != Weights() or any(name not in columns for name in SCORE_PARTS):
        return {}
    share = column(columns, "SCORE_SHARE")
    share = np.where((share > 0) & known, share, np.nan)
    if not np.isfinite(share).any():
        return {}
    whole = dict.fromkeys(SCORE_PARTS, share)
    # The spread does not depend on the scored share.
    whole["SCORE_SPREAD"] = np.ones(len(share))
    found = {name: np.minimum(1.0, column(columns, name) / whole[name]) for name in SCORE_PARTS}
    found["SCORE_SHARE"] = np.minimum(1.0, share)
    for part in ("POINTS", "BINDING_SHARE", "SEQUENTIAL_POINTS"):
        names = [f"SCORE_{part}_{name.upper()}" for name in RESOURCES]
        # Each one is rounded, so their sum may exceed 1 slightly.
        total = np.maximum(1.0, np.sum([found[name] for name in names], axis=0))
        found |= {name: found[name] / total for name in names}
    return found


def _by_resource(  # noqa: PLR0917 - values of samples and of the recorder
    resources: Mapping[str, Floats],
    saturation: Floats,
    upper_bound: Floats,
    binding: NDArray[np.int64],
    parts: Mapping[str, Floats],
    binding_threshold: float,
) -> tuple[dict[str, Floats], dict[str, Floats], dict[str, Floats]]:
    """Return `points`, `binding_share` and `sequential_points` of `Levels`."""
    own = {name: np.nan_to_num(resources[name]) for name in RESOURCES}
    highest = {name: binding == place for place, name in enumerate(RESOURCES)}
    others = np.sum([np.where(highest[name], 0.0, own[name]) for name in RESOURCES], axis=0)
    # The binding resource counts in full towards the upper bound; the others share the rest of it.
    more = np.minimum(1.0, (upper_bound - saturation) / np.maximum(1e-9, others))
    bound = {
        name: (highest[name] & (saturation >= binding_threshold)).astype(np.float64) for name in RESOURCES
    }
    points = {name: np.where(highest[name], saturation, 0.0 * saturation) for name in RESOURCES}
    sequential = {name: own[name] * np.where(highest[name], 1.0, more) for name in RESOURCES}

    def recorded_of(part: str, values: dict[str, Floats]) -> dict[str, Floats]:
        return {name: recorded_or(parts, f"SCORE_{part}_{name.upper()}", values[name]) for name in RESOURCES}

    return (
        recorded_of("POINTS", points),
        recorded_of("BINDING_SHARE", bound),
        recorded_of("SEQUENTIAL_POINTS", sequential),
    )


def _clock(columns: Columns, ceilings: Ceilings) -> Floats:
    """Return the SM clock over its maximum, from the driver or the table of ceilings; 1 where unknown."""
    maximum = column(columns, "MAX_SM_CLOCK")
    maximum = np.where(maximum > 0, maximum, ceilings.clock or np.nan)
    ratio = np.minimum(1.0, column(columns, "SM_CLOCK") / maximum)
    return np.where(np.isfinite(ratio), ratio, 1.0)


def _counted_links(links: Mapping[str, Floats], active: Floats) -> list[Floats]:
    """Return the levels of the links; that of a link to the host is at most the SM activity.

    A copy from the host while no SM works is waiting for input, however full the link is.
    """
    return [
        np.fmin(level, np.where(np.isnan(active), level, active)) if link in HOST_LINKS else level
        for link, level in links.items()
    ]


def _lower_bound(
    resources: Mapping[str, Floats],
    dram: Floats,
    links: Mapping[str, Floats],
    active: Floats,
    weights: Weights,
) -> Floats:
    # Memory's level may have been clipped at 1 in phases that the mean hides, so use its activity, which is
    # not clipped.
    certain = [resources["compute"], np.minimum(1.0, dram * weights.memory)]
    for link, level in links.items():
        overlap = np.maximum(0.0, level + active - 1.0) if link in HOST_LINKS else level
        certain.append(np.minimum(1.0, overlap * weights.interconnect))
    return np.nan_to_num(_highest(certain))


def _completeness(
    pipes: Mapping[str, Floats], raw: Mapping[str, Floats], engine: Floats, active: Floats, known: Flags
) -> float:
    parts = (
        np.mean([np.isfinite(pipes[metric]) for metric in _EXPECTED_PIPES], axis=0),
        np.isfinite(raw["memory"]),
        np.isfinite(raw["interconnect"]),
        np.isfinite(engine),
        np.isfinite(active),
    )
    complete = np.mean(np.stack([np.asarray(part, np.float64) for part in parts]), axis=0)
    return float(complete[known].mean()) if known.any() else 0.0


def _over_ceiling(values: Floats, ceiling: float = 1.0) -> Floats:
    return np.minimum(1.0, values / ceiling)


def _highest(values: list[Floats]) -> Floats:
    """Return the highest known value of each sample."""
    return np.asarray(np.fmax.reduce(np.stack(values), axis=0), np.float64)
