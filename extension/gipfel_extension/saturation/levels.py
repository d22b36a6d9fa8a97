"""How loaded each resource of one GPU was, sample by sample: fractions of what the resource can reach."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Columns
from .ceilings import HOST_LINKS, LINKS, PIPES, Ceilings
from .settings import RESOURCES, Weights

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


def levels_of(columns: Columns, ceilings: Ceilings, weights: Weights) -> Levels:
    """Return the levels of a GPU's samples."""
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
        np.where(known, _least(resources, dram, links, active, weights), np.nan),
        np.where(known, np.minimum(running, np.maximum(0.0, filled).sum(axis=0)), np.nan),
        filled.argmax(axis=0),
        known,
        _completeness(pipes, raw, engine, active, known),
        tuple(
            metric
            for metric in (*PIPES, "DRAM_ACTIVE", "GR_ENGINE_ACTIVE", "GPU_UTIL", "SM_ACTIVE")
            if np.isfinite(column(columns, metric)).any()
            and not np.isfinite(fractions(columns, metric)).any()
        ),
    )


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
