"""Two runs side by side: what changed, in points and in words."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .settings import LOSSES, RESOURCES


@dataclass(frozen=True)
class Difference:
    """One number of two runs; None where nobody knows it.

    Parameters
    ----------
    name
        ``score``, a loss, ``<resource> binding``, ``confidence``, or a metric of the user's.
    unit
        ``points``, ``%``, or empty.
    better
        Whether the second is better; None where neither is, or nobody can say.
    """

    name: str
    unit: str
    first: float | None
    second: float | None
    change: float | None
    better: bool | None

    def to_json(self) -> dict[str, Any]:
        """The difference as a dictionary that JSON can hold."""
        return asdict(self)


#: A change that is smaller than this is none.
_LEAST = 0.5


def compare_documents(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    rates: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> tuple[Difference, ...]:
    """What is different between two documents of :func:`document.document_of`; what both lack is left out.

    Parameters
    ----------
    rates
        The user's own metrics: name to the mean of either run. Whether more of one is better nobody knows.
    """
    found = [_difference("score", "points", first.get("score"), second.get("score"), more_is_better=True)]
    for name in LOSSES:
        pair = (first["losses"].get(name), second["losses"].get(name))
        if any(pair):
            found.append(_difference(name, "points", *pair, more_is_better=False))
    for name in RESOURCES:
        shares = [None if value is None else 100 * value for value in (_of(first, name), _of(second, name))]
        if any(shares):
            found.append(_difference(f"{name} binding", "%", shares[0], shares[1]))
    found.append(_difference("confidence", "", first.get("confidence"), second.get("confidence")))
    for name, (a, b) in (rates or {}).items():
        found.append(_difference(name, "", a, b))
    return tuple(found)


def _of(document: Mapping[str, Any], resource: str) -> float | None:
    value: float | None = document["binding"].get(resource)
    return value


def _difference(
    name: str, unit: str, first: float | None, second: float | None, *, more_is_better: bool | None = None
) -> Difference:
    change = None if first is None or second is None else round(second - first, 4)
    better = None
    if change is not None and more_is_better is not None and abs(change) >= _LEAST:
        better = (change > 0) == more_is_better
    return Difference(name, unit, first, second, change, better)
