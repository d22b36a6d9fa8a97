"""DCGM's field names as others write them, and their blanks."""

from collections.abc import Mapping

from ..sources import dcgm_fields
from ..sources.dcgm_fields import BLANKS, MIB

__all__ = ["BLANKS", "FIELDS", "MIB", "metric_of", "number_of"]

#: Of energy, others write what a sample used and not the counter.
_OTHERWISE = ("TOTAL_ENERGY_CONSUMPTION",)

#: DCGM's name without ``DCGM_FI_DEV_`` or ``DCGM_FI_PROF_`` to our metric and the factor to its unit.
FIELDS: Mapping[str, tuple[str, float]] = {
    name: (field.metric, field.factor)
    for field in dcgm_fields.DCGM_FIELDS.values()
    for name in (field.name, field.newer)
    if name and name not in _OTHERWISE
}


def metric_of(field: str) -> tuple[str, float] | None:
    """Our metric and factor for ``DCGM_FI_DEV_…`` or ``DCGM_FI_PROF_…``; None for others."""
    name = field.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
    return FIELDS.get(name) if name != field else None


def number_of(text: object) -> float:
    """A value as it was written; NaN for a blank, for words and for what isn't finite."""
    value = dcgm_fields.number_of(text)
    return float("nan") if value is None else value
