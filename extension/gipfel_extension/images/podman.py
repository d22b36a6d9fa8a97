"""Run podman with a separate store, which has layers of earlier builds but no containers of the user.

Only one build at a time uses a store. Its mounts are in a namespace that podman's pause process keeps alive.
That process ends with the build, so podman's records of mounts are removed before the next build.
"""

import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.process.tree import Process, descendants, kill_tree
from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.runs import make_private, user_cache

_POLL_S = 0.5
_GRACE_S = 5.0
_REMOVE_S = 300.0
_MAX_LINE = 4096
#: File systems on which rootless podman can't store files of several owners.
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "fuse", "9p", "afs")
_PAUSE_FILE = "libpod/tmp/pause.pid"


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """The build was asked to stop."""


class Podman:
    """Runs podman, and programs in podman's user namespace; all output goes to a log.

    Parameters
    ----------
    store
        Directory of images and layers.
    log
        File that gets the output of all programs.
    is_stopping
        Called twice a second; when it returns True, the running program is ended and `Stopped` is raised.
    """

    def __init__(
        self, store: Path, log: BinaryIO, environment: Mapping[str, str], is_stopping: Callable[[], bool]
    ) -> None:
        self.store = store
        self._log, self._is_stopping = log, is_stopping
        self._runtime = store / "runtime"
        # Remove the records of an earlier build's mounts, which ended with its namespace.
        shutil.rmtree(self._runtime, ignore_errors=True)
        self._runtime.mkdir(mode=0o700)
        configuration = store / "storage.conf"
        paths = f'runroot = "{self._runtime}/containers"\ngraphroot = "{store}/data/containers/storage"\n'
        configuration.write_text(f'[storage]\ndriver = "overlay"\n{paths}')
        self.environment = {
            **{name: value for name, value in environment.items() if name != "SOURCE_DATE_EPOCH"},
            # Rootless podman ignores the paths in its configuration, and derives them from these variables.
            "XDG_DATA_HOME": str(store / "data"),
            "XDG_RUNTIME_DIR": str(self._runtime),
            "CONTAINERS_STORAGE_CONF": str(configuration),
        }

    def podman(
        self,
        *arguments: str,
        on_line: Callable[[str], None] = lambda _: None,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run podman and return its output.

        Raises
        ------
        GipfelError
            It failed; the message has its last line.
        """
        return self.run("podman", "--log-level=error", *arguments, on_line=on_line, variables=variables)

    def in_namespace(self, script: str, *arguments: str) -> str:
        """Run a shell script as root of podman's user namespace, so that it can mount images.

        Raises
        ------
        GipfelError
            It failed.
        """
        return self.podman("unshare", "sh", "-euc", script, "sh", *arguments)

    def run(
        self,
        *argv: str,
        on_line: Callable[[str], None] = lambda _: None,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program with podman's variables and return its output.

        Raises
        ------
        GipfelError
            It failed; the message has its last line.
        """
        # In a separate session, so that Ctrl-C reaches only this process, which then ends the whole tree.
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(variables or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise GipfelError(f"{argv[0]} can't be started: {error.strerror}.") from error
        lines: list[str] = []
        try:
            for line in self._lines(process):
                lines.append(line)
                on_line(line)
            status = process.wait()
        finally:
            self._end(process)
        if status:
            raise _failure(lines, argv[0], status)
        return "\n".join(lines)

    def _lines(self, process: "subprocess.Popen[bytes]") -> Iterator[str]:
        assert process.stdout is not None  # noqa: S101 - PIPE
        descriptor, held = process.stdout.fileno(), b""
        while True:
            if self._is_stopping():
                raise Stopped
            if not select.select([descriptor], [], [], _POLL_S)[0]:
                # podman's pause process may have inherited the pipe and keep it open.
                if process.poll() is not None:
                    break
                continue
            piece = os.read(descriptor, 1 << 16)
            self._log.write(piece)
            self._log.flush()
            *whole, held = (held + piece).split(b"\n")
            yield from (line[:_MAX_LINE].decode(errors="replace") for line in whole)
            held = held[-_MAX_LINE:]
            if not piece:
                break
        if held:
            yield held.decode(errors="replace")

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End a program and all processes that it started, even those of other users in the namespace."""
        if process.stdout is not None:
            process.stdout.close()
        if process.poll() is not None:
            return
        below = [found for pid in descendants(process.pid) if (found := Process.of(pid))]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        # The user may also end processes with subordinate IDs, since the user owns their namespace. Some have
        # lost their parent by now, so they are not in the process tree below podman.
        for each in below:
            with suppress(PermissionError):
                each.signal(signal.SIGKILL)
        if left := [str(each.pid) for each in below if each.alive]:
            self._quietly("unshare", "kill", "-KILL", *left)
        kill_tree(process.pid)
        process.kill()
        process.wait()

    @contextmanager
    def unpacking(self) -> Iterator[Path]:
        """Provide a directory for files of any owner on the store's disk, and remove it at the end."""
        folder = self.store / "unpacked"
        self.remove(folder)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            self.remove(folder)

    def remove(self, folder: Path) -> None:
        """Remove a directory whose files may belong to the user's subordinate ids."""
        if folder.exists():
            self._quietly("unshare", "rm", "-rf", str(folder))

    def _quietly(self, *arguments: str) -> None:
        command = ("podman", "--log-level=error", *arguments)
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, env=self.environment, capture_output=True, timeout=_REMOVE_S, check=False)

    def close(self) -> None:
        """End the process that keeps podman's namespaces."""
        with suppress(OSError, ValueError):
            found = Process.of(int(read_regular(self._runtime / _PAUSE_FILE, 64)))
            if found is not None and Path(f"/proc/{found.pid}").stat().st_uid == os.geteuid():
                found.signal(signal.SIGKILL)


def _failure(lines: Sequence[str], program: str, status: int) -> GipfelError:
    """Return an error with the line of the output that says why a program failed."""
    reason = _reason(lines, status).partition(" &imagebuilder.")[0].rstrip(".")
    if "no space left" in reason.lower():
        store = "the one of GIPFEL_IMAGE_STORE, or ~/.cache/gipfel/images"
        return GipfelError(f"A disk is full: {reason}.", f"Free space beside the image and on {store}.")
    fix = ""
    if "docker://" in reason:
        fix = "If this node reaches no registry, give an image of this machine with --base."
    return GipfelError(f"{program} failed: {reason}.", fix)


def _reason(lines: Sequence[str], status: int) -> str:
    said = [one_line(line) for line in lines if line.strip()]
    if full := next((line for line in reversed(said) if "no space left" in line.lower()), ""):
        return full[-200:]
    marks = ("Error: ", "FATAL ERROR: ", "E: ")
    named = next((line.split(": ", 1)[1] for line in reversed(said) if line.startswith(marks)), "")
    return (named or (said or [f"exit status {status}"])[-1])[:400]


@contextmanager
def open_podman(
    log: BinaryIO,
    environment: Mapping[str, str],
    is_stopping: Callable[[], bool],
    *,
    keep_layers: bool,
    report: Callable[[str], None],
) -> Iterator[Podman]:
    """Provide podman with the user's store, or with a temporary one.

    The temporary store is used if `keep_layers` is False, or while another build uses the user's store.
    """
    parent = store_directory(environment)
    try:
        make_private(parent)
        _check_owner(parent)
    except OSError as error:
        raise GipfelError(
            f"{parent} can't be created: {error.strerror}.",
            "Set GIPFEL_IMAGE_STORE to a directory on a local disk.",
        ) from error
    handle = os.open(parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        kept = keep_layers and _try_lock(handle)
        if keep_layers and not kept:
            report("Another build uses the kept layers; this one starts without them.")
        with _stores_lock(parent):
            store = parent / "kept" if kept else Path(tempfile.mkdtemp(prefix="build-", dir=parent))
            store.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
            fcntl.flock(lock, fcntl.LOCK_EX)
        podman = Podman(store, log, environment, is_stopping)
        try:
            remove_abandoned(environment)
            yield podman
        finally:
            if not kept:
                podman.remove(store / "data")
            podman.close()
            os.close(lock)
            if not kept:
                shutil.rmtree(store, ignore_errors=True)
    finally:
        os.close(handle)


def _check_owner(folder: Path) -> None:
    """Refuse a directory of another user, who could change the build: anyone can create one in /dev/shm."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise GipfelError(
            f"{folder} belongs to another user, or others can write to it.",
            "Set GIPFEL_IMAGE_STORE to a directory of your own.",
        )


def store_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of stores: ``$GIPFEL_IMAGE_STORE``, else one in the user's cache directory.

    If the cache is on a shared file system, where podman can't store files of several owners, the directory
    is in ``/dev/shm``, that is in the node's memory.
    """
    configured = environment.get("GIPFEL_IMAGE_STORE", "")
    if configured:
        return Path(configured).absolute()
    cache = user_cache("images", environment)
    if file_system_of(cache).startswith(_SHARED):
        return Path(f"/dev/shm/gipfel-images-{os.geteuid()}")  # noqa: S108 - its owner is checked
    return cache


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds a path, such as ``ext4``; empty if it is not known."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if len(point) >= len(best) and path.is_relative_to(point):
            best, kind = point, rest.split()[0]
    return kind


def remove_abandoned(environment: Mapping[str, str]) -> None:
    """Remove stores of builds that were killed on this machine, and their files in the user's own store."""
    parent = store_directory(environment)
    with suppress(OSError), tempfile.TemporaryFile() as log:
        for store in (*parent.glob("build-*"), parent / "kept"):
            with suppress(OSError), _stores_lock(parent):
                handle = os.open(
                    store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
                )
                try:
                    if _try_lock(handle):
                        _clear_store(Podman(store, log, environment, lambda: False))
                finally:
                    os.close(handle)


def _clear_store(podman: Podman) -> None:
    """Remove a store that no build uses; in the user's own store, remove only unpacked files."""
    try:
        podman.remove(podman.store / "unpacked")
        if podman.store.name != "kept":
            podman.remove(podman.store / "data")
    finally:
        podman.close()
    if podman.store.name != "kept":
        shutil.rmtree(podman.store, ignore_errors=True)


@contextmanager
def _stores_lock(parent: Path) -> Iterator[None]:
    """Hold the lock for creating and removing stores, so that a new store never counts as abandoned."""
    handle = os.open(parent / "stores.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def clear_layers(environment: Mapping[str, str]) -> Path:
    """Remove the cached layers, and return the directory of stores.

    Raises
    ------
    GipfelError
        A build is using them.
    """
    parent = store_directory(environment)
    with tempfile.TemporaryFile() as log:
        reports: list[str] = []
        with open_podman(log, environment, lambda: False, keep_layers=True, report=reports.append) as podman:
            if reports:
                raise GipfelError("A build uses the layers.", "Wait for it; see `gipfel ps`.")
            podman.remove(podman.store / "data")
    shutil.rmtree(parent / "kept", ignore_errors=True)
    return parent
