"""Exclusions: nodes that a user avoids for a while, for one check or for all, with a reason."""

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.runs import make_private, write_atomically
from gipfel_cluster.scheduler.notation import fold_hostlist

from ...telemetry.files import read_regular
from .store import locked

_MOST = 4096
_MOST_BYTES = 16 << 20


class Exclusion(Frozen):
    """One node that is excluded until a time (UTC, ns); ``check`` is empty where it holds for all checks."""

    node: Line = Field(min_length=1, max_length=255)
    check: Line = Field("", max_length=200)
    reason: Line = Field(min_length=1, max_length=500)
    since_ns: int = Field(ge=0)
    until_ns: int = Field(ge=0)


def nodes_of(exclusions: Iterable[Exclusion], checks: Collection[str] | None = None) -> str:
    """Return the nodes as a hostlist; with `checks` only those excluded for one of them, or for all."""
    return fold_hostlist({each.node for each in exclusions if checks is None or each.check in {"", *checks}})


class _Content(Frozen):
    version: Literal[1] = 1
    exclusions: tuple[Exclusion, ...] = Field((), max_length=_MOST)


_Change = Callable[[dict[tuple[str, str], Exclusion]], dict[tuple[str, str], Exclusion]]


class Exclusions:
    """Exclusion list of one cluster.

    Parameters
    ----------
    folder
        The cluster's folder in the history; the list is ``exclusions.json`` in it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "exclusions.json"

    def read(self, *, now_ns: int | None = None) -> tuple[tuple[Exclusion, ...], str]:
        """Return the current exclusions, and a problem with the file, which is then set aside."""
        now = time.time_ns() if now_ns is None else now_ns
        try:
            content = _Content.model_validate_json(read_regular(self.path, _MOST_BYTES))
        except FileNotFoundError:
            return (), ""
        except OSError as error:
            return (), f"{self.path} can't be read: {error.strerror}."
        except ValidationError:
            aside = self.path.with_suffix(".corrupt")
            self.path.replace(aside)
            return (
                (),
                f"{self.path} is not an exclusion list; it is set aside as {aside.name}, excluding nothing.",
            )
        return tuple(each for each in content.exclusions if each.until_ns > now), ""

    def add(self, exclusions: Iterable[Exclusion], *, now_ns: int | None = None) -> tuple[Exclusion, ...]:
        """Add some, replacing older ones of the same node and check; return the whole list.

        Raises
        ------
        GipfelError
            The file can't be written, or holds more than 4096.
        """
        added = {(each.node, each.check): each for each in exclusions}
        return self._change(lambda kept: kept | added, now_ns)

    def lift(self, node: str, check: str = "", *, now_ns: int | None = None) -> tuple[Exclusion, ...]:
        """Remove one, with an empty `check` all of the node; return the remaining ones.

        Raises
        ------
        GipfelError
            The file can't be written.
        """
        return self._change(
            lambda kept: {
                key: each for key, each in kept.items() if key[0] != node or (check and key[1] != check)
            },
            now_ns,
        )

    def _change(self, change: _Change, now_ns: int | None) -> tuple[Exclusion, ...]:
        try:
            make_private(self.path.parent)
            with locked(self.path.with_name(".exclusions.lock")):
                kept, _ = self.read(now_ns=now_ns)
                after = change({(each.node, each.check): each for each in kept})
                if len(after) > _MOST:
                    raise GipfelError(f"{self.path} would hold more than {_MOST} nodes.", "Lift some first.")
                content = _Content(exclusions=tuple(after[key] for key in sorted(after)))
                write_atomically(self.path, content.model_dump_json(indent=2))
        except OSError as error:
            raise GipfelError(
                f"{self.path} can't be written: {error.strerror}.",
                "Set GIPFEL_VETTING_HISTORY to a folder that you can write to.",
            ) from error
        return content.exclusions
