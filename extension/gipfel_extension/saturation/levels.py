"""How loaded each resource of one GPU was, sample by sample: fractions of what the resource can reach."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import Columns
from .ceilings import LINKS, PIPES, Ceilings
from .settings import RESOURCES, Weights

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Pipes that DCGM and GPM both have, and that confidence counts.
_EXPECTED_PIPES = PIPES[:4]


@dataclass(frozen=True)
class Levels:
    """One GPU's levels; arrays have one value per sample, NaN where unknown.

    Parameters
    ----------
    resources
        ``compute``, ``memory`` and ``interconnect``: level over practical ceiling, weighted, from 0 to 1.
    links
        The same for each link, unweighted; only the links that the model has.
    engine, active
        ``GR_ENGINE_ACTIVE`` (or, where it is missing, ``GPU_UTIL``) and ``SM_ACTIVE``.
    saturation
        The highest level of the resources; NaN where the sample can't be scored.
    binding
        Which resource that was, as an index into ``RESOURCES``.
    known
        Whether the sample can be scored: compute or memory is known, and engine or SM activity.
    completeness
        Share of the expected metrics that the scored samples hold.
    """

    time_ns: NDArray[np.int64]
    resources: Mapping[str, Floats]
    links: Mapping[str, Floats]
    engine: Floats
    active: Floats
    saturation: Floats
    binding: NDArray[np.int64]
    known: Flags
    completeness: float


def column(columns: Columns, metric: str) -> Floats:
    """A metric's values; NaN where it is missing, infinite or negative."""
    values = np.asarray(columns.get(metric, np.full(len(columns["time_ns"]), np.nan)), np.float64)
    return np.where(np.isfinite(values) & (values >= 0), values, np.nan)


def levels_of(columns: Columns, ceilings: Ceilings, weights: Weights) -> Levels:
    """The levels of a GPU's samples."""
    pipes = {metric: _fraction(column(columns, metric), ceilings.pipe(metric)) for metric in PIPES}
    links = {
        link: _fraction(_highest([column(columns, metric) for metric in LINKS[link]]), rate)
        for link, rate in ceilings.links.items()
    }
    unknown = np.full(len(columns["time_ns"]), np.nan)
    raw = {
        "compute": _highest(list(pipes.values())),
        "memory": _fraction(column(columns, "DRAM_ACTIVE"), ceilings.memory),
        "interconnect": _highest([unknown, *links.values()]),
    }
    resources = {name: np.minimum(1.0, raw[name] * weights.of(name)) for name in RESOURCES}
    engine = _fraction(column(columns, "GR_ENGINE_ACTIVE"))
    engine = np.where(np.isnan(engine), _fraction(column(columns, "GPU_UTIL")), engine)
    active = _fraction(column(columns, "SM_ACTIVE"))
    loaded = np.isfinite(raw["compute"]) | np.isfinite(raw["memory"])
    known = loaded & (np.isfinite(engine) | np.isfinite(active))
    stacked = np.stack([resources[name] for name in RESOURCES])
    filled = np.where(np.isnan(stacked), -1.0, stacked)
    parts = (
        np.mean([np.isfinite(pipes[metric]) for metric in _EXPECTED_PIPES], axis=0),
        np.isfinite(raw["memory"]),
        np.isfinite(raw["interconnect"]),
        np.isfinite(engine),
        np.isfinite(active),
    )
    complete = np.mean(np.stack([np.asarray(part, np.float64) for part in parts]), axis=0)
    return Levels(
        columns["time_ns"],
        resources,
        links,
        engine,
        active,
        np.where(known, filled.max(axis=0), np.nan),
        filled.argmax(axis=0),
        known,
        float(complete[known].mean()) if known.any() else 0.0,
    )


def _fraction(values: Floats, ceiling: float = 1.0) -> Floats:
    return np.minimum(1.0, values / ceiling)


def _highest(values: list[Floats]) -> Floats:
    """The highest known value of each sample."""
    highest: Floats = np.fmax.reduce(np.stack(values), axis=0)
    return highest
