"""Cache the results of scanned files until the files change.

The key of an entry is a file's device, inode, size, modification and change time, and the code of this
package, so that files are scanned again after an update of the rules. Results with anything not judged are
not cached.
"""

import functools
import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gipfel_cluster import installs
from gipfel_cluster.image_digest import cached_digest, keep_digest
from gipfel_cluster.model import Frozen
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import open_regular, read_regular
from ..model import Item, Package, Vulnerability

_MAX_ENTRY_BYTES = 64 << 20
_MAX_ENTRIES = 200
#: Seconds since a file's last change before its result is cached: file systems have coarse times, so that a
#: file may change twice without a new time.
_SETTLED_S = 2.0


class FilePart(Frozen):
    """Result of scanning one target; ``digest`` is an image's ``sha256:…``, empty for other targets."""

    items: tuple[Item, ...] = ()
    packages: tuple[Package, ...] = ()
    not_judged: tuple[str, ...] = ()
    not_scanned: tuple[str, ...] = ()
    other_files: int = 0
    os_release: Mapping[str, str] = {}
    digest: str = ""


class Matched(Frozen):
    """Vulnerabilities of packages.

    ``newest_s`` is the time from which the age of the advisories counts, in seconds since 1970; None if no
    archive was read.
    """

    vulnerabilities: tuple[Vulnerability, ...] = ()
    not_judged: tuple[str, ...] = ()
    newest_s: float | None = None


class _Entry(Frozen):
    key: str
    part: FilePart | None = None
    matched: Matched | None = None


_Kept = TypeVar("_Kept", FilePart, Matched)


class ScanCache:
    """A cache of results in one of the user's directories; without a directory, nothing is cached.

    `digests` is the path of the user's cache of image digests, which jobs share.
    """

    def __init__(self, folder: Path | None, digests: Path | None = None) -> None:
        self._folder = folder
        self.digests = digests

    def part(self, target: Path, status: os.stat_result, options: str) -> FilePart | None:
        """Return the cached result of a file; None if there is none or the file has changed since."""
        entry = self._read(f"{os.path.realpath(target)} {options}", _key(status))
        return entry.part if entry else None

    def keep_part(self, target: Path, status: os.stat_result, options: str, part: FilePart) -> None:
        """Cache the result of a file, unless something was not judged or the file may still change."""
        settled = time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_S
        if settled and not part.not_judged and _key(target.stat()) == _key(status):
            self._write(f"{os.path.realpath(target)} {options}", _Entry(key=_key(status), part=part))

    def matched(self, packages: Sequence[Package], state: str) -> Matched | None:
        """Return the cached vulnerabilities of packages for a mirror's state (`Mirror.state`), or None."""
        entry = self._read(_digest_of(packages), f"{_code()} {state}")
        return entry.matched if entry else None

    def keep_matched(self, packages: Sequence[Package], state: str, matched: Matched) -> None:
        """Cache the vulnerabilities of packages for a mirror's state."""
        self._write(_digest_of(packages), _Entry(key=f"{_code()} {state}", matched=matched))

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()}.json"

    def _read(self, name: str, key: str) -> _Entry | None:
        path = self._path(name)
        try:
            entry = _Entry.model_validate_json(read_regular(path, _MAX_ENTRY_BYTES)) if path else None
        except (OSError, ValidationError):
            return None
        return entry if entry and entry.key == key else None

    def _write(self, name: str, entry: _Entry) -> None:
        path = self._path(name)
        if path is None:
            return
        # A failure to write is harmless: the next scan only takes longer.
        with suppress(OSError):
            make_private(path.parent)
            write_atomically(path, entry.model_dump_json())
            entries = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)
            for old in entries[:-_MAX_ENTRIES]:
                old.unlink(missing_ok=True)


class Digest:
    """The SHA-256 of a file: from the user's cache of digests, else computed in a thread during the scan."""

    def __init__(self, path: Path, cache: Path | None = None) -> None:
        self._path, self._cache, self._found = path, cache, ""
        self._thread = threading.Thread(target=self._compute, name="image digest", daemon=True)
        self._thread.start()

    def value(self) -> str:
        """Wait for the digest and return it; empty if the file could not be read."""
        self._thread.join()
        return self._found

    def _compute(self) -> None:
        with suppress(OSError), open_regular(self._path, follow=True) as file:
            about = os.fstat(file.fileno())
            known = cached_digest(self._cache, str(self._path), about) if self._cache else None
            self._found = known or f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            if self._cache and not known:
                keep_digest(self._cache, str(self._path), file.fileno(), about, self._found)


def _key(status: os.stat_result) -> str:
    fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return " ".join([*map(str, fields), _code()])


def _digest_of(packages: Sequence[Package]) -> str:
    text = "\n".join(each.model_dump_json() for each in packages)
    return f"packages {hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()}"


@functools.cache
def _code() -> str:
    """Return a digest that changes with the rules, computed from the source of the modules that have them."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parents[1].rglob("*.py")), Path(installs.__file__)):
        digest.update(read_regular(path, _MAX_ENTRY_BYTES, follow=True))
    return digest.hexdigest()[:32]
