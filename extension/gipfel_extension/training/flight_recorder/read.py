"""Dumps in a directory, pickle or JSON; pickles of plain values are read without executing anything."""

import json
import math
import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError

from ...telemetry.files import read_regular
from .dump import Bundles, Dump, dump_of
from .plain_pickle import MAX_BYTES, plain_value

_RANK = re.compile(r"(.*?)(\d{1,7})(?:\.json|\.pickle|\.pkl)?$")
_MAX_FILES = 100_000
_MAX_JSON_VALUES = 5_000_000
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class DumpDirectory:
    """The dumps of a directory in the order of ranks.

    ``unreadable`` has the reason for each file that is not a dump, ``damaged`` the ranks whose only file is
    such a file.
    """

    dumps: tuple[Dump, ...] = ()
    unreadable: tuple[str, ...] = ()
    damaged: frozenset[int] = frozenset()


#: Callback for each dump as it is read, with all entries of its file.
Also = Callable[[Dump, Bundles], None]


def has_dumps(folder: Path) -> bool:
    """Return whether a directory has a file with the name of a dump; False if it can't be read."""
    try:
        return any(_RANK.fullmatch(path.name) for path in islice(folder.iterdir(), _MAX_FILES))
    except OSError:
        return False


def read_dumps(folder: Path, *, limit_s: float = math.inf, also: Also | None = None) -> DumpDirectory:
    """Read every dump of a directory; the rank is the number at the end of a file's name.

    Parameters
    ----------
    limit_s
        Seconds after which no further file is read.
    also
        Called with each dump and all entries of its file.

    Raises
    ------
    GipfelError
        Two dumps are from the same rank, so they can't be from one job.
    OSError
        The directory can't be read.
    """
    end = time.monotonic() + limit_s
    dumps: dict[int, tuple[str, Dump]] = {}
    unreadable: list[str] = []
    paths = sorted(islice(folder.iterdir(), _MAX_FILES), key=_scattered if math.isfinite(limit_s) else None)
    matches = [(path, match) for path in paths if (match := _RANK.fullmatch(path.name)) and path.is_file()]
    left = 0
    for path, match in matches:
        rank = int(match[2])
        if time.monotonic() > end:
            left += 1
            continue
        try:
            dump = _read(path, rank, also)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            unreadable.append(f"{path.name[:_MAX_NAME]}: {reason}")
            continue
        if rank in dumps and dumps[rank][0] != match[1]:
            raise _several_jobs(folder, f"two are of rank {rank} ({path.name})")
        dumps[rank] = (match[1], dump)
    found = tuple(dumps[rank][1] for rank in sorted(dumps))
    damaged = frozenset(int(match[2]) for _, match in matches) - dumps.keys()
    late = (f"{left} of {len(paths)} files: reading the others took {limit_s:.0f} s",) if left else ()
    return DumpDirectory(found, (*late, *sorted(unreadable)), damaged)


def _scattered(path: Path) -> int:
    # Read in a scattered order, so that at the time limit not only files of the first ranks have been read.
    return zlib.crc32(path.name.encode(errors="surrogateescape"))


def _read(path: Path, rank: int, also: Also | None) -> Dump:
    written_ns = path.lstat().st_mtime_ns
    content = read_regular(path, MAX_BYTES)
    if not content:
        raise ValueError("it is empty")
    return replace(read_dump(content, rank, also), written_ns=written_ns)


def read_dump(content: bytes, rank: int, also: Also | None = None) -> Dump:
    """Return the dump of one rank.

    Raises
    ------
    ValueError
        The content is not a dump.
    """
    try:
        return dump_of(_json(content) if content[:1] == b"{" else plain_value(content), rank, also)
    except (TypeError, AttributeError, ArithmeticError, RecursionError, IndexError) as error:
        raise ValueError(f"its values are not those of a flight recorder ({type(error).__name__})") from error


def check_one_job(folder: Path, dumps: Sequence[Dump]) -> None:
    """Refuse dumps that can't be of one job.

    Raises
    ------
    GipfelError
        Ranks disagree on the members of the default group, or one ended long before another began.
    """
    defaults = [
        (dump.rank, group.members)
        for dump in dumps
        for group, label in dump.groups.items()
        if label == "default_pg"
    ]
    worlds = {len(members): rank for rank, members in reversed(defaults)}
    if len(worlds) > 1 or any(rank not in members for rank, members in defaults):
        sizes = " and ".join(f"{size} ranks (rank {rank})" for size, rank in sorted(worlds.items()))
        raise _several_jobs(folder, f"jobs of {sizes}, and dumps of one job agree on its ranks")
    timed = [each for each in dumps if each.oldest_ns is not None and each.newest_ns is not None]
    if not timed:
        return
    first = min(timed, key=lambda each: each.newest_ns or 0)
    last = max(timed, key=lambda each: each.oldest_ns or 0)
    gap_s = ((last.oldest_ns or 0) - (first.newest_ns or 0)) / 1e9
    timeout_s = max((call.timeout_ms for each in (first, last) if (call := each.last)), default=0) / 1e3
    if gap_s > max(3600.0, 2 * timeout_s):
        raise _several_jobs(
            folder,
            f"rank {first.rank}'s last call is {gap_s / 3600:.1f} hours before rank {last.rank}'s first",
        )


def _several_jobs(folder: Path, reason: str) -> GipfelError:
    return GipfelError(
        f"{folder} has dumps of several jobs: {reason}.",
        "Keep the dumps of one job in a directory of their own.",
    )


def _json(content: bytes) -> Any:
    # A value of a few bytes in JSON takes dozens of bytes in memory.
    if sum(content.count(each) for each in (b",", b"[", b"{")) > _MAX_JSON_VALUES:
        raise ValueError(f"it holds more than {_MAX_JSON_VALUES} values")
    return json.loads(content)
