"""The run folder of a job, and private directories on a node's local disk.

`RunFolder` holds the record, the samples and the score of a job. `ScratchFolder` is a directory whose path is
short enough for sockets; `LiveFolder` is a scratch folder whose path is written to a file in the run folder.
"""

import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .messages import GipfelError, ReportOSError
from .regular_files import read_regular

_MAX_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SCRATCH_PREFIX = "gipfel-"
_LOCK_FILE = "lock"
#: Age from which an unlocked scratch folder counts as abandoned.
_MIN_AGE_S = 60.0
# A socket's path may have 107 characters. TMPDIR is often longer, or on a remote file system.
_SCRATCH_ROOT = Path("/tmp")  # noqa: S108 - mkdtemp makes a directory that its owner alone can enter
_MAX_LIVE_FILE_BYTES = 64 << 10


def runs_root(environment: dict[str, str] | None = None) -> Path:
    """Return the directory of all run folders: ``$GIPFEL_RUNS``, else ``~/.gipfel/runs``."""
    environment = dict(os.environ) if environment is None else environment
    if configured := environment.get("GIPFEL_RUNS"):
        return Path(configured).expanduser()
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / "runs"


def user_cache(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory ``gipfel/NAME`` of the user's cache, ``$XDG_CACHE_HOME`` or else ``~/.cache``."""
    configured = environment.get("XDG_CACHE_HOME", "")
    home = Path(environment.get("HOME") or Path.home())
    return Path(configured if configured.startswith("/") else home / ".cache", "gipfel", name)


def make_private(folder: Path) -> None:
    """Create a directory and its missing parents, each accessible to its owner alone (0700).

    ``mkdir(mode=0o700, parents=True)`` would apply the mode only to the last directory, so that other users
    could read ``~/.gipfel``.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    # Raises if a file has this name, as mkdir does.
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
    """The directory ``<runs>/<cluster>-<job id>`` of one job; its owner alone can enter it (0700)."""

    path: Path

    @classmethod
    def create(cls, root: Path, cluster: str, job_id: str) -> "RunFolder":
        """Create the directory, or reuse that of the same job before it was requeued.

        Raises
        ------
        GipfelError
            The name has characters other than letters, digits, dot, dash and underscore, or the directory
            can't be created.
        """
        name = f"{cluster}-{job_id}"
        if not _NAME.fullmatch(name):
            raise GipfelError(f"{name!r} can't name a run folder.", "Use letters, digits, '.', '-' and '_'.")
        path = root / name
        with ReportOSError(
            f"The run folder {path} can't be created", "Set GIPFEL_RUNS to a directory that you can write to."
        ):
            make_private(root)
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
            (path / "telemetry").mkdir(mode=0o700, exist_ok=True)
        return cls(path)

    @property
    def name(self) -> str:
        """Return ``<cluster>-<job id>``."""
        return self.path.name

    @property
    def telemetry(self) -> Path:
        """Return the directory of the recorder's segments."""
        return self.path / "telemetry"

    def write_record(self, record: dict[str, Any]) -> None:
        """Write ``record.json``: options, resolved EDF and digest, nodes, versions, command."""
        write_atomically(self.path / "record.json", json.dumps(record, indent=2, sort_keys=True) + "\n")

    def read_record(self) -> dict[str, Any]:
        """Return the content of ``record.json``; an empty dictionary if the file does not exist yet."""
        try:
            content = json.loads(read_regular(self.path / "record.json", _MAX_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise GipfelError(f"The record of run {self.name} can't be read: {reason}.") from error
        if not isinstance(content, dict):
            raise GipfelError(f"The record of run {self.name} can't be read: it is not a JSON object.")
        return content


@dataclass(frozen=True)
class ScratchFolder:
    """A short-lived private directory (0700) on the local disk, locked by its process.

    A process that is killed leaves its directory behind; the next process of the user that creates one
    removes all that are unlocked.
    """

    path: Path
    _lock: int

    @classmethod
    def create(cls, root: Path = _SCRATCH_ROOT) -> "ScratchFolder":
        """Create a directory, and remove those that killed processes of this user left behind."""
        for abandoned in root.glob(f"{_SCRATCH_PREFIX}*"):
            with suppress(OSError):
                _remove_if_abandoned(abandoned)
        path = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=root))
        lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the directory and its content; the end of a ``with`` block does so, too."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> "ScratchFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def _remove_if_abandoned(path: Path) -> None:
    about = path.lstat()
    # A directory is not locked yet right after it was created.
    is_new = time.time() - about.st_mtime < _MIN_AGE_S
    if is_new or not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


@dataclass(frozen=True)
class LiveFolder:
    """A private directory for sockets, and ``live-<node>.json`` in the run folder, which holds its path."""

    scratch: ScratchFolder
    live_file: Path

    @classmethod
    def create(cls, run: Path, node: str) -> "LiveFolder | None":
        """Create both; return None if that fails, since a run can be recorded without a live stream.

        Parameters
        ----------
        node
            This node's name. If several processes create one for a node, readers find the last one.
        """
        live_file = _live_file(run, node)
        with suppress(OSError), ExitStack() as stack:
            scratch = stack.enter_context(ScratchFolder.create())
            write_atomically(live_file, json.dumps({"node": node, "sockets": str(scratch.path)}) + "\n")
            stack.pop_all()
            return cls(scratch, live_file)
        return None

    @property
    def path(self) -> Path:
        """Return the directory for sockets."""
        return self.scratch.path

    def remove(self) -> None:
        """Remove both."""
        if live_sockets(self.live_file.parent, self.live_file.stem.removeprefix("live-")) == self.path:
            with suppress(OSError):
                self.live_file.unlink()
        self.scratch.remove()


def live_sockets(run: Path, node: str) -> Path | None:
    """Return the directory of a run's sockets on this node; None if this user owns no such directory."""
    try:
        path = Path(json.loads(read_regular(_live_file(run, node), _MAX_LIVE_FILE_BYTES))["sockets"])
        about = path.lstat()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    # A run folder may belong to another user, and its file may name any path.
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return path if own and not stat.S_IMODE(about.st_mode) & 0o077 else None


def _live_file(run: Path, node: str) -> Path:
    return run / f"live-{''.join(c if c.isalnum() or c in '._-' else '_' for c in node)}.json"
