"""How loaded each resource of one GPU was, sample by sample: fractions of what the resource can reach."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.metric_table import SCORE_PARTS
from ..telemetry.sample import Columns
from .ceilings import HOST_LINKS, LINKS, PIPES, Ceilings
from .settings import RESOURCES, Thresholds, Weights

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Pipes that DCGM and GPM both have, and that confidence counts.
_EXPECTED_PIPES = PIPES[:4]

#: A counter's rounding may take a fraction a little above 1; beyond this the source counts something else.
_MOST = 1.05
#: Share of a metric's samples above that from which none of them is believed: per cent instead of fractions.
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
        Each link's rate over its ceiling, unweighted; only the links that the model has.
    pipes, math
        The busiest pipe's activity at the clock of the moment, and that of the busiest without integers.
    clock
        SM clock over the GPU's maximum; 1 where either is unknown.
    engine, active
        ``GR_ENGINE_ACTIVE`` (or, where it is missing, ``GPU_UTIL``) and ``SM_ACTIVE``.
    saturation
        The highest level of the resources; NaN where the sample can't be scored.
    least, most
        Bounds of the saturation that phases shorter than the interval leave open: a mean of maxima is no
        lower than any resource's own mean, and no higher than their sum or than the engine's activity.
    binding
        Which resource was the highest, as an index into ``RESOURCES``.
    points, bound, in_turn
        By resource: the saturation where it was the highest; the share of the sample in which it was, and
        above a least level; its part of `most`. They add up to `saturation`, at most 1, and `most`.
    parts
        What the recorder kept of finer samples, of each of which `saturation` and the like are then the mean;
        empty where there is nothing. NaN in samples without.
    known
        Whether the sample can be scored: compute or memory is known, and engine or SM activity.
    completeness
        Share of the expected metrics that the scored samples hold.
    faulty
        Metrics whose values are no fractions; they count as missing.
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
    least: Floats
    most: Floats
    binding: NDArray[np.int64]
    points: Mapping[str, Floats]
    bound: Mapping[str, Floats]
    in_turn: Mapping[str, Floats]
    parts: Mapping[str, Floats]
    known: Flags
    completeness: float
    faulty: tuple[str, ...] = ()


def column(columns: Columns, metric: str) -> Floats:
    """Return a metric's values; NaN where it is missing, infinite or negative."""
    values = np.asarray(columns.get(metric, np.full(len(columns["time_ns"]), np.nan)), np.float64)
    return np.where(np.isfinite(values) & (values >= 0), values, np.nan)


def fractions(columns: Columns, metric: str) -> Floats:
    """Return a metric's values from 0 to 1; NaN where a value is above 1.05, all NaN where many are."""
    values = column(columns, metric)
    with np.errstate(invalid="ignore"):
        above = values > _MOST
    if above.sum() > _FAULTY_SHARE * np.isfinite(values).sum():
        return np.full(len(values), np.nan)
    return np.minimum(1.0, np.where(above, np.nan, values))


def levels_of(
    columns: Columns, ceilings: Ceilings, weights: Weights, *, least: float = Thresholds().binding
) -> Levels:
    """Return the levels of a GPU's samples.

    Parameters
    ----------
    least
        The level from which the highest resource binds.
    """
    clock = _clock(columns, ceilings)
    pipes = {metric: _of(fractions(columns, metric), ceilings.pipe(metric)) for metric in PIPES}
    busiest = _highest(list(pipes.values()))
    dram = fractions(columns, "DRAM_ACTIVE")
    engine, active = fractions(columns, "GR_ENGINE_ACTIVE"), fractions(columns, "SM_ACTIVE")
    engine = np.where(np.isnan(engine), fractions(columns, "GPU_UTIL"), engine)
    links = {
        link: _of(_highest([column(columns, metric) for metric in LINKS[link]]), rate)
        for link, rate in ceilings.links.items()
    }
    raw = {
        "compute": busiest * clock,
        "memory": _of(dram, ceilings.memory),
        "interconnect": _highest([np.full(len(active), np.nan), *_used(links, active)]),
    }
    resources = {name: np.minimum(1.0, raw[name] * weights.of(name)) for name in RESOURCES}
    known = (np.isfinite(raw["compute"]) | np.isfinite(raw["memory"])) & (
        np.isfinite(engine) | np.isfinite(active)
    )
    stacked = np.stack([resources[name] for name in RESOURCES])
    filled = np.where(np.isnan(stacked), -1.0, stacked)
    saturation = np.where(known, filled.max(axis=0), np.nan)
    running = np.fmax(np.fmax(engine, active), saturation)
    most = np.where(known, np.minimum(running, np.maximum(0.0, filled).sum(axis=0)), np.nan)
    binding = filled.argmax(axis=0)
    sure = np.where(known, _least(resources, dram, links, active, weights), np.nan)
    parts = _parts(columns, weights)
    points, bound, in_turn = _by_resource(resources, saturation, most, binding, parts, least)
    if parts:
        saturation, most = (np.sum(list(each.values()), axis=0) for each in (points, in_turn))
        most = np.maximum(most, saturation)
        binding = np.nan_to_num(np.stack(list(points.values()))).argmax(axis=0)
    return Levels(
        columns["time_ns"],
        resources,
        links,
        busiest,
        _highest([pipes[metric] for metric in _EXPECTED_PIPES]),
        clock,
        engine,
        active,
        saturation,
        np.minimum(saturation, kept(parts, "SCORE_LEAST", sure)),
        most,
        binding,
        points,
        bound,
        in_turn,
        parts,
        known,
        _completeness(pipes, raw, engine, active, known),
        tuple(
            metric
            for metric in (*PIPES, "DRAM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL", "SM_ACTIVE")
            if np.isfinite(column(columns, metric)).any()
            and not np.isfinite(fractions(columns, metric)).any()
        ),
    )


def kept(parts: Mapping[str, Floats], name: str, own: Floats) -> Floats:
    """Return what a recorder kept of finer samples where it did, else what the samples themselves show."""
    held = parts.get(name)
    return own if held is None else np.where(np.isfinite(held), held, own)


def _parts(columns: Columns, weights: Weights) -> Mapping[str, Floats]:
    """Return what the recorder kept, with the weights that it knew."""
    if weights != Weights() or any(name not in columns for name in SCORE_PARTS):
        return {}
    share = column(columns, "SCORE_SHARE")
    share = np.where(share > 0, share, np.nan)
    if not np.isfinite(share).any():
        return {}
    whole = dict.fromkeys(SCORE_PARTS, share)
    # It is not a part of the second.
    whole["SCORE_SPREAD"] = np.ones(len(share))
    found = {name: np.minimum(1.0, column(columns, name) / whole[name]) for name in SCORE_PARTS}
    found["SCORE_SHARE"] = np.minimum(1.0, share)
    for part in ("POINTS", "TURN"):
        names = [f"SCORE_{part}_{name.upper()}" for name in RESOURCES]
        # Each is rounded, and their sum is at most 1 all the same.
        total = np.maximum(1.0, np.sum([found[name] for name in names], axis=0))
        found |= {name: found[name] / total for name in names}
    return found


def _by_resource(  # noqa: PLR0917 - what a sample says, and what was kept of it
    resources: Mapping[str, Floats],
    saturation: Floats,
    most: Floats,
    binding: NDArray[np.int64],
    parts: Mapping[str, Floats],
    least: float,
) -> tuple[dict[str, Floats], dict[str, Floats], dict[str, Floats]]:
    """Return `points`, `bound` and `in_turn` of `Levels`."""
    own = {name: np.nan_to_num(resources[name]) for name in RESOURCES}
    highest = {name: binding == place for place, name in enumerate(RESOURCES)}
    others = np.sum([np.where(highest[name], 0.0, own[name]) for name in RESOURCES], axis=0)
    # Of the upper bound the binding resource has all, the others what they add.
    more = np.minimum(1.0, (most - saturation) / np.maximum(1e-9, others))
    with np.errstate(invalid="ignore"):
        bound = {name: (highest[name] & (saturation >= least)).astype(np.float64) for name in RESOURCES}
    points = {name: np.where(highest[name], saturation, 0.0 * saturation) for name in RESOURCES}
    in_turn = {name: own[name] * np.where(highest[name], 1.0, more) for name in RESOURCES}

    def kept_of(part: str, values: dict[str, Floats]) -> dict[str, Floats]:
        return {name: kept(parts, f"SCORE_{part}_{name.upper()}", values[name]) for name in RESOURCES}

    return kept_of("POINTS", points), kept_of("BOUND", bound), kept_of("TURN", in_turn)


def _clock(columns: Columns, ceilings: Ceilings) -> Floats:
    """Return the SM clock over its maximum, as the driver gives it, else by the table; 1 where unknown."""
    most = column(columns, "MAX_SM_CLOCK")
    most = np.where(most > 0, most, ceilings.clock or np.nan)
    ratio = np.minimum(1.0, column(columns, "SM_CLOCK") / most)
    return np.where(np.isfinite(ratio), ratio, 1.0)


def _used(links: Mapping[str, Floats], active: Floats) -> list[Floats]:
    """Return what each link counts for: a link to the host no more than the SMs that had work meanwhile.

    A copy from the host that nothing computes on is waiting for input, however full the link is.
    """
    return [
        np.fmin(level, np.where(np.isnan(active), level, active)) if link in HOST_LINKS else level
        for link, level in links.items()
    ]


def _least(
    resources: Mapping[str, Floats],
    dram: Floats,
    links: Mapping[str, Floats],
    active: Floats,
    weights: Weights,
) -> Floats:
    # Memory's level may be cut at 1 in phases of which the mean shows nothing: the plain activity is sure.
    sure = [resources["compute"], np.minimum(1.0, dram * weights.memory)]
    for link, level in links.items():
        overlap = np.maximum(0.0, level + active - 1.0) if link in HOST_LINKS else level
        sure.append(np.minimum(1.0, overlap * weights.interconnect))
    return np.nan_to_num(_highest(sure))


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


def _of(values: Floats, ceiling: float = 1.0) -> Floats:
    return np.minimum(1.0, values / ceiling)


def _highest(values: list[Floats]) -> Floats:
    """Return the highest known value of each sample."""
    highest: Floats = np.fmax.reduce(np.stack(values), axis=0)
    return highest
