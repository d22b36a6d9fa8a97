"""Exclusions: nodes that are excluded for a limited time, for one check or for all, with a reason."""

import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.runs import make_private, write_atomically
from gipfel_cluster.scheduler.notation import fold_hostlist

from ...telemetry.files import read_regular
from .store import locked

_MAX_EXCLUSIONS = 4096
_MAX_BYTES = 16 << 20


class Exclusion(Frozen):
    """One node that is excluded until a time (UTC, ns); an empty ``check`` means all checks."""

    node: OneLine = Field(min_length=1, max_length=255)
    check: OneLine = Field("", max_length=200)
    reason: OneLine = Field(min_length=1, max_length=500)
    since_ns: int = Field(ge=0)
    until_ns: int = Field(ge=0)


def excluded_hostlist(exclusions: Iterable[Exclusion], checks: Collection[str] | None = None) -> str:
    """Return the nodes as a hostlist; with `checks`, only those excluded for one of them or for all."""
    return fold_hostlist({each.node for each in exclusions if checks is None or each.check in {"", *checks}})


class _Content(Frozen):
    version: Literal[1] = 1
    exclusions: tuple[Exclusion, ...] = Field((), max_length=_MAX_EXCLUSIONS)


_Change = Callable[[dict[tuple[str, str], Exclusion]], dict[tuple[str, str], Exclusion]]


class Exclusions:
    """Exclusion list of one cluster.

    Parameters
    ----------
    folder
        The cluster's directory in the history, which holds ``exclusions.json``.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "exclusions.json"

    def read(self, *, now_ns: int | None = None) -> tuple[tuple[Exclusion, ...], str]:
        """Return the current exclusions, and a problem with the file, which is then renamed."""
        now = time.time_ns() if now_ns is None else now_ns
        try:
            content = _Content.model_validate_json(read_regular(self.path, _MAX_BYTES))
        except FileNotFoundError:
            return (), ""
        except OSError as error:
            return (), f"{self.path} can't be read: {error.strerror}."
        except ValidationError:
            aside = self.path.with_suffix(".corrupt")
            self.path.replace(aside)
            return (
                (),
                f"{self.path} is not an exclusion list. It was renamed to {aside.name}; no node is excluded.",
            )
        return tuple(each for each in content.exclusions if each.until_ns > now), ""

    def add(self, exclusions: Iterable[Exclusion], *, now_ns: int | None = None) -> tuple[Exclusion, ...]:
        """Add exclusions, replacing older ones of the same node and check; return all exclusions.

        Raises
        ------
        GipfelError
            The file can't be written, or holds more than 4096.
        """
        added = {(each.node, each.check): each for each in exclusions}
        return self._change(lambda current: current | added, now_ns)

    def remove(self, node: str, check: str = "", *, now_ns: int | None = None) -> tuple[Exclusion, ...]:
        """Remove an exclusion, with an empty `check` all of the node; return the remaining exclusions.

        Raises
        ------
        GipfelError
            The file can't be written.
        """
        return self._change(
            lambda current: {
                key: each for key, each in current.items() if key[0] != node or (check and key[1] != check)
            },
            now_ns,
        )

    def _change(self, change: _Change, now_ns: int | None) -> tuple[Exclusion, ...]:
        try:
            make_private(self.path.parent)
            with locked(self.path.with_name(".exclusions.lock")):
                current, _ = self.read(now_ns=now_ns)
                changed = change({(each.node, each.check): each for each in current})
                if len(changed) > _MAX_EXCLUSIONS:
                    problem = f"{self.path} would hold more than {_MAX_EXCLUSIONS} nodes."
                    raise GipfelError(problem, "Remove exclusions of other nodes first.")
                content = _Content(exclusions=tuple(changed[key] for key in sorted(changed)))
                write_atomically(self.path, content.model_dump_json(indent=2))
        except OSError as error:
            raise GipfelError(
                f"{self.path} can't be written: {error.strerror}.",
                "Set GIPFEL_VETTING_HISTORY to a directory that you can write to.",
            ) from error
        return content.exclusions
