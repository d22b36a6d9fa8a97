"""Cache the results of scanned files until the files change.

The key of an entry is a file's path, device, inode, size, modification and change time, and the code of this
package, so that files are scanned again after an update of the rules. A second entry has an image's digest as
key, for copies of it. The result of a file is not cached if anything in it could not be judged.
Vulnerabilities of packages are cached by the packages and the state of the mirror.
"""

import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from gipfel_cluster.image_digest import cached_digest, keep_digest
from gipfel_cluster.model import Frozen, one_line
from gipfel_cluster.runs import make_private, write_atomically

from ...telemetry.files import open_regular, read_regular
from ..kept import code_digest, file_key
from ..model import Item, Package, Vulnerability, shown

_MAX_ENTRY_BYTES = 64 << 20
_MAX_ENTRIES = 400
#: Seconds since a file's last change before its result is cached: file systems have coarse times, so that a
#: file may change twice without a new time.
_SETTLED_S = 2.0


class FilePart(Frozen):
    """Result of scanning one target, with the fields of a `ScanDocument`.

    ``digest`` is an image's ``sha256:…``, empty for other targets.
    """

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
    """An entry; ``target`` is the image that ``part`` is about, in the entry with its digest as key."""

    key: str
    target: str = ""
    part: FilePart | None = None
    matched: Matched | None = None


class ScanCache:
    """A cache of results in one of the user's directories; without a directory, nothing is cached.

    `digests` is the path of the user's cache of image digests, which jobs share. `complete` is False once a
    result was not cached.
    """

    def __init__(self, folder: Path | None, digests: Path | None = None) -> None:
        self._folder = folder
        self.digests = digests
        self.complete = folder is not None

    def part(self, target: Path, status: os.stat_result, options: str) -> FilePart | None:
        """Return the cached result of a file; None if there is none or the file has changed since."""
        entry = self._read(f"{os.path.realpath(target)} {options}", _key(status))
        return entry.part if entry else None

    def part_of_copy(
        self, image: Path, status: os.stat_result, options: str, *, read: bool
    ) -> FilePart | None:
        """Return the cached result of an image with the same content; None without one.

        Parameters
        ----------
        read
            Whether to compute the image's digest if it is not known, which takes as long as reading the file.
            It is computed only if an image of this size has a result.
        """
        entry = self._load(f"image of {status.st_size} bytes {options}")
        if entry is None or entry.part is None:
            return None
        digest = cached_digest(self.digests, str(image), status) if self.digests else None
        digest = digest or (Digest(image, self.digests).value() if read else "")
        if not digest or entry.key != f"{digest} {code_digest()}":
            return None
        before, now = entry.target, shown(str(image))
        items = tuple(
            each.model_copy(update={"path": now + each.path.removeprefix(before)})
            for each in entry.part.items
        )
        lines = tuple(line.replace(one_line(before), one_line(now)) for line in entry.part.not_scanned)
        return entry.part.model_copy(update={"items": items, "not_scanned": lines})

    def keep_part(
        self, target: Path, status: os.stat_result, options: str, part: FilePart, *, image: bool = False
    ) -> None:
        """Cache the result of a file, unless something was not judged or the file may still change.

        The result of an image is also cached by its digest, if that is known.
        """
        if not _is_settled(status) or part.not_judged or _key(target.stat()) != _key(status):
            self.complete = False
            return
        self._write(f"{os.path.realpath(target)} {options}", _Entry(key=_key(status), part=part))
        digest = part.digest or (self.digests and cached_digest(self.digests, str(target), status))
        if digest and image:
            entry = _Entry(key=f"{digest} {code_digest()}", target=shown(str(target)), part=part)
            self._write(f"image of {status.st_size} bytes {options}", entry)

    def matched(self, packages: Sequence[Package], state: str) -> Matched | None:
        """Return the cached vulnerabilities of packages for a mirror's state (`Mirror.state`), or None."""
        entry = self._read(_digest_of(packages), f"{code_digest()} {state}")
        return entry.matched if entry else None

    def keep_matched(self, packages: Sequence[Package], state: str, matched: Matched) -> None:
        """Cache the vulnerabilities of packages for a mirror's state."""
        self._write(_digest_of(packages), _Entry(key=f"{code_digest()} {state}", matched=matched))

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()}.json"

    def _read(self, name: str, key: str) -> _Entry | None:
        entry = self._load(name)
        return entry if entry and entry.key == key else None

    def _load(self, name: str) -> _Entry | None:
        path = self._path(name)
        try:
            return _Entry.model_validate_json(read_regular(path, _MAX_ENTRY_BYTES)) if path else None
        except (OSError, ValidationError):
            return None

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
            # The file may change again without a new time.
            if self._cache and not known and _is_settled(about):
                keep_digest(self._cache, str(self._path), file.fileno(), about, self._found)


def _is_settled(status: os.stat_result) -> bool:
    return time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_S


def _key(status: os.stat_result) -> str:
    return f"{file_key(status)} {code_digest()}"


def _digest_of(packages: Sequence[Package]) -> str:
    text = "\n".join(each.model_dump_json() for each in packages)
    return f"packages {hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()}"
