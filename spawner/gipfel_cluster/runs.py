"""The run folder of a job, and private folders on a node's local disk.

`RunFolder` is the record of everything that is shown. `ScratchFolder` has a path that is short enough for
sockets; `LiveFolder` is one that a file in the run folder leads to.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model import GipfelError
from .regular_files import read_regular

_MOST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SCRATCH_PREFIX = "gipfel-"
_LOCK_FILE = "lock"
_SETTLED_S = 60.0
# A socket's path may have 107 characters: TMPDIR is often too long, and on a remote file system.
_SCRATCH_ROOT = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder that its owner alone can enter
_MOST_NOTE_BYTES = 64 << 10


def runs_root(environment: dict[str, str] | None = None) -> Path:
    """Return the folder of all run folders: ``$GIPFEL_RUNS``, else ``~/.gipfel/runs``."""
    environment = dict(os.environ) if environment is None else environment
    given = environment.get("GIPFEL_RUNS")
    if given:
        return Path(given).expanduser()
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "runs"


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, each for its owner alone (0700).

    ``mkdir(mode=0o700, parents=True)`` gives its mode to the last one only: ``~/.gipfel`` would be open.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    # A file of this name is an error, as with mkdir.
    folder.mkdir(exist_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees either the old or the new content.

    The file is readable by its owner alone (0600).
    """
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class RunFolder:
    """The folder ``<runs>/<cluster>-<job id>`` of one job; its owner alone can enter it (0700)."""

    path: Path

    @classmethod
    def create(cls, root: Path, cluster: str, job_id: str) -> "RunFolder":
        """Make the folder, or reuse the one that a requeued job left.

        Raises
        ------
        GipfelError
            The name holds other than letters, digits, dot, dash and underscore, or the folder can't be made.
        """
        name = f"{cluster}-{job_id}"
        if not _NAME.fullmatch(name):
            raise GipfelError(f"{name!r} can't name a run folder.", "Use letters, digits, '.', '-' and '_'.")
        path = root / name
        try:
            make_private(root)
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
            (path / "telemetry").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise GipfelError(
                f"The run folder {path} can't be made: {error.strerror}.",
                "Set GIPFEL_RUNS to a folder that you can write to.",
            ) from error
        return cls(path)

    @property
    def name(self) -> str:
        """Return ``<cluster>-<job id>``."""
        return self.path.name

    @property
    def telemetry(self) -> Path:
        """Return the folder of the recorder's segments."""
        return self.path / "telemetry"

    def write_record(self, record: dict[str, Any]) -> None:
        """Write ``record.json``: options, resolved EDF and digest, nodes, versions, command."""
        write_atomically(self.path / "record.json", json.dumps(record, indent=2, sort_keys=True) + "\n")

    def read_record(self) -> dict[str, Any]:
        """Return the content of ``record.json``; an empty dictionary where there is none yet."""
        try:
            content = json.loads(read_regular(self.path / "record.json", _MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise GipfelError(f"The record of run {self.name} can't be read: {why}.") from error
        if not isinstance(content, dict):
            raise GipfelError(f"The record of run {self.name} can't be read: it is not a JSON object.")
        return content


@dataclass(frozen=True)
class ScratchFolder:
    """A short-lived private folder (0700) on the local disk, locked by its process.

    A process that is killed removes nothing: the next one of the same user removes unlocked folders.
    """

    path: Path
    _lock: int

    @classmethod
    def create(cls, root: Path = _SCRATCH_ROOT) -> "ScratchFolder":
        """Make a folder, and remove what killed processes of this user left."""
        for abandoned in root.glob(f"{_SCRATCH_PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(abandoned)
        path = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=root))
        lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_abandoned(path: Path) -> None:
    about = path.lstat()
    # A folder is not locked yet in the moment after it was made.
    fresh = time.time() - about.st_mtime < _SETTLED_S
    if fresh or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


@dataclass(frozen=True)
class LiveFolder:
    """A private folder for sockets, and the file in the run folder that names it."""

    scratch: ScratchFolder
    note: Path

    @classmethod
    def beside(cls, run: Path, node: str) -> "LiveFolder | None":
        """Make both; None where they can't be made, since a run is recorded without a stream too.

        Parameters
        ----------
        node
            This node's name; of several that make one for it the last is found.
        """
        try:
            scratch = ScratchFolder.create()
        except OSError:
            return None
        note = _note(run, node)
        try:
            write_atomically(note, json.dumps({"node": node, "sockets": str(scratch.path)}) + "\n")
        except OSError:
            scratch.remove()
            return None
        return cls(scratch, note)

    @property
    def path(self) -> Path:
        """Return the folder for sockets."""
        return self.scratch.path

    def remove(self) -> None:
        """Remove both."""
        if live_sockets(self.note.parent, self.note.stem.removeprefix("live-")) == self.path:
            with suppress(OSError):
                self.note.unlink()
        self.scratch.remove()


def live_sockets(run: Path, node: str) -> Path | None:
    """Return the folder of a run's sockets on this node; None where there is none that is this user's own."""
    try:
        path = Path(json.loads(read_regular(_note(run, node), _MOST_NOTE_BYTES))["sockets"])
        about = path.lstat()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    # A run folder may belong to another user, and lead anywhere.
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return path if own and not stat.S_IMODE(about.st_mode) & 0o077 else None


def _note(run: Path, node: str) -> Path:
    return run / f"live-{''.join(c if c.isalnum() or c in '._-' else '_' for c in node)}.json"
