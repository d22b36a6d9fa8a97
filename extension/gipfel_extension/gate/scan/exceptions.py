"""Exceptions: findings that someone has judged and accepted, with a reason and a last day."""

import tomllib
from collections.abc import Iterable, Sequence
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator

from gipfel_cluster.model import Frozen, GipfelError, OneLine

from ...telemetry.files import read_regular
from ..model import Excepted, Item, Vulnerability

_MAX_FILE_BYTES = 1 << 20
_MAX_EXCEPTIONS = 2000


class ScanException(Frozen):
    """One ``[[exception]]`` of a file.

    ``rule`` is that of a finding, or the ID or an alias of an advisory; ``path`` is a pattern for the path of
    an item, as of ``fnmatch``; ``package`` is the name of a package. ``until`` is the last day.
    """

    rule: Annotated[OneLine, Field(min_length=1, max_length=200)]
    path: Annotated[OneLine, Field(max_length=4096)] = ""
    package: Annotated[OneLine, Field(max_length=300)] = ""
    reason: Annotated[OneLine, Field(min_length=3, max_length=1000)]
    until: date

    @field_validator("until", mode="before")
    @classmethod
    def _only_dates(cls, value: object) -> object:
        if type(value) is not date:
            raise ValueError("must be a date such as 2027-01-31")
        return value


class Exceptions:
    """Exceptions that are valid today; ``notes`` has a line for each that has ended."""

    def __init__(self, entries: Iterable[ScanException] = (), *, today: date) -> None:
        found = list(entries)
        self._valid = [each for each in found if today <= each.until]
        self.notes = [
            f"The exception for {each.rule} ended on {each.until}." for each in found if each.until < today
        ]

    def of_items(self, items: Sequence[Item]) -> tuple[list[Item], list[Excepted]]:
        """Return the items without excepted findings, and what was excepted."""
        left, excepted = [], []
        for item in items:
            kept = []
            for finding in item.findings:
                by = next((each for each in self._valid if _covers(each, item.path, finding.rule)), None)
                if by is None:
                    kept.append(finding)
                else:
                    excepted.append(
                        Excepted(path=item.path, rule=finding.rule, reason=by.reason, until=by.until)
                    )
            left.append(
                item if len(kept) == len(item.findings) else item.model_copy(update={"findings": tuple(kept)})
            )
        return left, excepted

    def of_vulnerabilities(
        self, vulnerabilities: Sequence[Vulnerability]
    ) -> tuple[list[Vulnerability], list[Excepted]]:
        """Return the vulnerabilities that are not excepted, and what was."""
        left, excepted = [], []
        for each in vulnerabilities:
            names = {each.id, *each.aliases}
            by = next(
                (
                    e
                    for e in self._valid
                    if e.rule in names and not e.path and e.package in ("", each.package)
                ),
                None,
            )
            if by is None:
                left.append(each)
            else:
                excepted.append(Excepted(path=each.package, rule=each.id, reason=by.reason, until=by.until))
        return left, excepted


def _covers(exception: ScanException, path: str, rule: str) -> bool:
    return (
        exception.rule == rule
        and not exception.package
        and (not exception.path or fnmatchcase(path, exception.path))
    )


def read_exceptions(path: Path, *, today: date) -> Exceptions:
    """Return the exceptions of a TOML file.

    Raises
    ------
    GipfelError
        The file can't be read, or an exception has no reason or no last day.
    """
    try:
        document = tomllib.loads(read_regular(path, _MAX_FILE_BYTES, follow=True).decode())
        entries = document.pop("exception", [])
        if document or not isinstance(entries, list) or len(entries) > _MAX_EXCEPTIONS:
            raise ValueError(f"it may hold only [[exception]], {_MAX_EXCEPTIONS} at most")  # noqa: TRY301
        return Exceptions((ScanException.model_validate(each) for each in entries), today=today)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(each) for each in first["loc"])
        raise _refused(path, f"{place}: {first['msg']}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, getattr(error, "strerror", "") or str(error)) from error


def _refused(path: Path, why: str) -> GipfelError:
    return GipfelError(
        f"The exceptions {path} can't be used: {why[:300]}.",
        'Write [[exception]] with rule = "ID", reason = "why", until = 2027-01-31; then path or package.',
    )
