"""Whole results of `gipfel scan` that can be printed again, and what makes them out of date.

A result is printed again as long as files, mirror, exceptions, rules and day are the same.
Only the standard library is imported: importing the models takes longer than looking up a result.
"""

import functools
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gipfel_cluster import installs
from gipfel_cluster.image_digest import stable_device
from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.runs import make_private, write_atomically

#: Directories below a mirror's root that hold archives.
PLACES = ("", "osv-scanner", "osv-scalibr")
_MAX_BYTES = 64 << 20


def file_key(status: os.stat_result) -> str:
    """Return a text that changes with a file's content."""
    fields = (stable_device(status), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return " ".join(map(str, fields))


@functools.cache
def code_digest() -> str:
    """Return a digest that changes with the rules, computed from the source of the modules that have them."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.rglob("*.py")), Path(installs.__file__)):
        digest.update(read_regular(path, _MAX_BYTES, follow=True))
    return digest.hexdigest()[:32]


def mirror_state(root: Path) -> str:
    """Return a digest that changes when an archive of a mirror is replaced, added or removed."""
    found = []
    for path in sorted(path for place in PLACES for path in (root / place).glob("*/all.zip")):
        with suppress(OSError):
            found.append(f"{path} {file_key(path.stat())}")
    return _digest(found)


@dataclass(frozen=True)
class KeptScan:
    """A result: the lines that were printed, each with whether it goes to stderr; the document as JSON text.

    ``statuses`` maps each bound of ``--fail-on`` to the exit status. ``newest_s`` is the time from which the
    age of the advisories counts; None without advisories.
    """

    lines: tuple[tuple[bool, str], ...]
    document: str
    statuses: Mapping[str, int]
    newest_s: float | None

    @property
    def age_s(self) -> float | None:
        """Return the age of the advisories today."""
        return None if self.newest_s is None else max(0.0, time.time() - self.newest_s)

    def to_json(self) -> str:
        """Return the document as JSON with today's age of the advisories."""
        document = json.loads(self.document)
        return json.dumps({**document, "advisories_age_s": self.age_s}, ensure_ascii=False)


class KeptScans:
    """Results in one of the user's directories, by a key of everything that they depend on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def key(
        self, targets: Sequence[Path], advisories: Path | None, exceptions: Path | None, words: Iterable[str]
    ) -> str:
        """Return the key of a scan; empty if a target is not a regular file, and so is scanned each time.

        Parameters
        ----------
        words
            Further options that results depend on.
        """
        parts = [code_digest(), datetime.now(UTC).date().isoformat(), *words]
        try:
            for target in targets:
                about = target.stat()
                if not stat.S_ISREG(about.st_mode):
                    return ""
                parts += [str(target), os.path.realpath(target), file_key(about)]
            if exceptions is not None:
                about = exceptions.stat()
                parts += [str(exceptions), file_key(about), str(about.st_uid)]
        except (OSError, ValueError):
            return ""
        state = mirror_state(advisories) if advisories is not None else ""
        return _digest(["scan", *parts, str(advisories), state])

    def read(self, key: str, max_age_s: float) -> KeptScan | None:
        """Return a result; None if there is none, or if its advisories have become too old."""
        try:
            head, _, document = read_regular(self._path(key), _MAX_BYTES).decode().partition("\n")
            found: dict[str, Any] = json.loads(head)
            kept = KeptScan(
                tuple((bool(error), str(line)) for error, line in found["lines"]),
                document,
                {str(bound): int(status) for bound, status in found["statuses"].items()},
                None if found["newest_s"] is None else float(found["newest_s"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return kept if document and (kept.age_s or 0.0) <= max_age_s else None

    def keep(self, key: str, kept: KeptScan) -> None:
        """Write a result."""
        head = {"lines": kept.lines, "statuses": dict(kept.statuses), "newest_s": kept.newest_s}
        # A failure to write is harmless: the next scan only takes longer.
        with suppress(OSError):
            make_private(self._folder)
            write_atomically(self._path(key), f"{json.dumps(head)}\n{kept.document}")

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode(errors="surrogateescape")).hexdigest()
