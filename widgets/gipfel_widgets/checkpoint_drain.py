"""Checkpoints in memory or on a node's own disk first, copied to the shared file system by another process.

Each rank writes its files into a directory of its node (`NodeStaging`), which takes a fraction of the time.
One process per node (`Drainer`) copies and hashes them, each rank's files at its turn and no faster than a
limit. It outlives the ranks, so that a checkpoint which all of them wrote is completed after a crash. The
process on rank 0's node installs the checkpoint when the files of all ranks have arrived. If a process is
killed, its successor copies what is left.

The process imports only the standard library; its command is ``python -m gipfel_widgets.checkpoint_drain``.
"""

import hashlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gipfel_cluster.process.locks import assign_lock_file, create_lock_file, wait_for_lock_holders
from gipfel_cluster.staged import available_memory
from gipfel_extension.data.checkpoints import (
    MANIFEST_NAME,
    METADATA_NAME,
    current_run,
    read_manifest,
    step_directories,
    step_of,
)
from gipfel_extension.telemetry.files import open_regular, read_json, replace_file, sync_directory

from .checkpoint_directory import (
    CheckpointError,
    Installer,
    OnPhase,
    is_attempt,
    missing_parts,
    sizes,
    work_directory,
    write_part,
)

#: Command that runs `main`; its arguments are the node's directory and the one of the checkpoints.
COMMAND: Sequence[str] = (sys.executable, "-m", "gipfel_widgets.checkpoint_drain")

#: File that lists a rank's files on this node; removed after they are copied.
_PART = ".part-{rank}.json"
#: Rank 0's request to install a checkpoint, the answer, and the directory of the processes' lock files.
_REQUEST, _OUTCOME, _LOCKS = "request.json", "outcome.json", "k"
_MAX_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20
_POLL_S, _LOOK_S = 0.05, 1.0
#: Seconds without progress after which files of other nodes are no longer expected.
_STUCK_S = 30.0
_RESTARTS = 3
#: Gives the process about a tenth of a core if training uses all; with less, a checkpoint might never end.
_NICE = 10
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - compared only


class NodeStaging:
    """A rank's access to the directory of its node, and to the process that copies from there.

    Parameters
    ----------
    local
        A directory on the node's disk or in its memory; the files are in a private directory below it.
    directory
        Directory of the checkpoints.

    Raises
    ------
    CheckpointError
        The private directory can't be created, or others can access it.
    """

    def __init__(self, local: Path, directory: Path) -> None:
        self._directory = directory
        name = hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()[:16]
        self.root = local / f"gipfel-{os.getuid()}-{name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._ending = False
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.root / _LOCKS).mkdir(exist_ok=True)
            found = self.root.lstat()
        except OSError as error:
            raise CheckpointError(f"{local} can't be used: {error.strerror}. Give another one.") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise CheckpointError(f"{self.root} is not yours alone. Delete it, or give another directory.")

    def path(self, step: int) -> Path:
        """Return the directory of a checkpoint's files on this node."""
        return self.root / f"step-{step}"

    def has_room(self, count: int) -> bool:
        """Return whether `count` bytes would use at most half of the free space."""
        about = os.statvfs(self.root)
        free = float(about.f_bavail * about.f_frsize)
        if os.fspath(self.root).startswith(_SHARED_MEMORY):
            free = min(free, available_memory())
        return 2 * count <= free

    def recover(self) -> None:
        """Copy what an earlier training left on this node; if its process still runs, wait for that first."""
        wait_for_lock_holders(self.root / _LOCKS, lambda _: None)
        if step_directories(self.root):
            self.start()
            self.stop()

    def start(self) -> None:
        """Start the process unless it runs; if it dies, a thread restarts it, up to three times."""
        if self._watcher is None or not self._watcher.is_alive():
            self._process = self._launch()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        for _ in range(_RESTARTS):
            if self._process is None or self._process.wait() == 0:
                return
            self._process = self._launch()
            if self._ending:
                self._end_input()
        # If it dies repeatedly, another start would not help.
        if self._process is not None:
            self._process.kill()

    def _launch(self) -> "subprocess.Popen[bytes]":
        lock, descriptor = create_lock_file(self.root / _LOCKS)
        # The program may have extended sys.path, which the process needs, too.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        process = subprocess.Popen(
            [*COMMAND, os.fspath(self.root), os.fspath(self._directory.absolute())],
            stdin=subprocess.PIPE, env=environment, pass_fds=(descriptor,), start_new_session=True,
        )  # fmt: skip
        assign_lock_file(lock, descriptor, process.pid)
        _register(process.pid)
        return process

    def hurry(self) -> None:
        """Let the process copy at once, without waiting for its turn."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(b"h")
                self._process.stdin.flush()

    def stop(self) -> None:
        """Wait until the process has copied everything, and end it."""
        self._ending = True
        self._end_input()
        if self._watcher is not None:
            self._watcher.join()
        self._process, self._ending = None, False

    def _end_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def put(self, step: int, rank: int, document: dict[str, Any]) -> None:
        """Record that a rank's files are complete on this node.

        The document's ``files`` has the CRC-32 of each file by name, ``attempt`` the number of the attempt,
        ``rate`` the limit in bytes per second (0 for none), ``not_before`` the UTC second of its turn.
        """
        replace_file(self.path(step) / _PART.format(rank=rank), json.dumps(document | {"rank": rank}))

    def install(self, step: int, request: dict[str, Any]) -> dict[str, Any]:
        """Request and await the installation of a checkpoint that all ranks wrote; return its manifest.

        ``request`` has the facts of `Installer.install`, and ``run``, ``keep``, ``files`` and ``spread_s``
        (seconds from the first rank's turn to the last one's). Only rank 0 calls this.

        Raises
        ------
        CheckpointError
            The checkpoint could not be copied or verified.
        """
        outcome = self.root / _OUTCOME
        outcome.unlink(missing_ok=True)
        replace_file(self.path(step) / _REQUEST, json.dumps(request))
        self.start()
        while self._watcher is not None and self._watcher.is_alive():
            with suppress(OSError, ValueError):
                return _result(read_json(outcome, _MAX_BYTES))
            time.sleep(_POLL_S)
        with suppress(OSError, ValueError):
            return _result(read_json(outcome, _MAX_BYTES))
        raise CheckpointError("The process that copies checkpoints ended several times.")


def _result(outcome: dict[str, Any]) -> dict[str, Any]:
    if outcome["problem"]:
        raise CheckpointError(outcome["problem"])
    return dict(outcome["manifest"])


class Drainer:
    """Copies files of checkpoints from a node's directory `root`; on rank 0's node also installs them."""

    def __init__(self, root: Path, directory: Path, on_phase: OnPhase = lambda _phase, _step: None) -> None:
        self._root, self._directory, self._on_phase = root, directory, on_phase
        self._hurries = False
        self._progress: tuple[Any, float] = (None, 0.0)
        self._look_at = 0.0

    def run(self, stdin: int) -> None:
        """Copy until the ranks close the pipe `stdin`, then what is complete; a byte in it means: hurry."""
        ended = False
        while True:
            waits = self._once(ended=ended)
            if ended and not waits:
                break
            if ended:
                time.sleep(_POLL_S)
            elif select.select([stdin], [], [], _POLL_S)[0]:
                ended = not os.read(stdin, 1 << 10)
                self._hurries = True
        for path in step_directories(self._root):
            shutil.rmtree(path, ignore_errors=True)

    def _once(self, *, ended: bool) -> bool:
        """Copy and install all that is possible now; return whether to expect more."""
        waits = False
        for path in sorted(step_directories(self._root), key=step_of):
            try:
                waits = self._step(path, ended=ended) or waits
            except (OSError, ValueError, KeyError, TypeError, CheckpointError) as error:
                reason = error.strerror if isinstance(error, OSError) else None
                self._end(path, str(reason or error), None)
        if not waits:
            self._hurries = ended
        return waits

    def _step(self, path: Path, *, ended: bool) -> bool:
        step, request = step_of(path), path / _REQUEST
        work = work_directory(self._directory, step)
        asked = read_json(request, _MAX_BYTES) if request.exists() else None
        # If the ranks ended before all had written, rank 0's node has files but no request.
        if ended and asked is None and (path / _PART.format(rank=0)).exists():
            shutil.rmtree(path)
            return False
        parts = sorted(path.glob(_PART.format(rank="*")))
        delivered = [self._deliver(each, work, step) for each in parts]
        if asked is None:
            return not all(delivered)
        return self._install(path, asked)

    def _deliver(self, part: Path, work: Path, step: int) -> bool:
        """Copy a rank's files at its turn; return whether they are copied or no longer needed."""
        document = read_json(part, _MAX_BYTES)
        if not self._hurries and time.time() < document["not_before"]:
            return False
        if not is_attempt(work, document["attempt"]):
            part.unlink()
            return True
        rate = 0.0 if self._hurries else document["rate"]
        busy, hashes = 0.0, {}
        for name, crc in document["files"].items():
            hashes[name], seconds = self._copy(part.with_name(name), work / name, crc, rate, step)
            busy += seconds
        sync_directory(work)
        write_part(work, document["rank"], hashes, busy)
        for name in (*document["files"], part.name):
            part.with_name(name).unlink()
        return True

    def _copy(
        self, source: Path, target: Path, crc: int, rate: float, step: int
    ) -> tuple[tuple[int, str], float]:
        """Copy a file at no more than `rate` bytes per second (0: no limit), and compare its CRC-32.

        Returns
        -------
        tuple
            Its size and SHA-256, and the seconds that copying took without pauses.
        """
        digest, found, busy, total = hashlib.sha256(), 0, 0.0, 0
        with open_regular(source) as read, target.open("wb") as write:
            began = time.monotonic()
            while chunk := read.read(_CHUNK_BYTES):
                start = time.monotonic()
                digest.update(chunk)
                found = zlib.crc32(chunk, found)
                write.write(chunk)
                total += len(chunk)
                if rate:
                    # Otherwise the page cache would take it all, and write it in one burst.
                    write.flush()
                    os.fdatasync(write.fileno())
                busy += time.monotonic() - start
                if total == len(chunk):
                    self._on_phase("drain", step)
                if rate:
                    time.sleep(max(0.0, total / rate - (time.monotonic() - began)))
            start = time.monotonic()
            write.flush()
            os.fsync(write.fileno())
            # The verification must read the stored data, not the page cache, whose memory training needs.
            os.posix_fadvise(write.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            busy += time.monotonic() - start
        if found != crc:
            raise CheckpointError(f"{target.name} has changed in {source.parent}. Older ones are kept.")
        return (total, digest.hexdigest()), busy

    def _install(self, path: Path, asked: dict[str, Any]) -> bool:
        """Install a checkpoint when all of its files have arrived; return whether to wait for more."""
        step, world = step_of(path), asked["world_size"]
        work, target = work_directory(self._directory, step), self._directory / f"step-{step}"
        installer = Installer(self._directory, asked["run"], asked["keep"], self._on_phase)
        if current_run(self._directory) != asked["run"]:
            shutil.rmtree(path)
            return False
        if not work.exists():
            manifest = read_manifest(target) if target.exists() else {}
            if manifest.get("run") == asked["run"] and manifest["time_ns"] / 1e9 >= asked["began"]:
                # An earlier process renamed the checkpoint, but was killed before it deleted older ones.
                installer.remove_old(step)
                self._end(path, "", manifest)
            else:
                self._end(path, f"{work.name} has been removed", None)
            return False
        if time.monotonic() < self._look_at:
            return True
        missing = [] if (work / MANIFEST_NAME).exists() else missing_parts(work, world)
        if missing:
            seen = sizes(work)
            if seen != self._progress[0]:
                self._progress = seen, time.monotonic()
            waited = time.monotonic() - self._progress[1]
            # The longer the wait, the less often the shared file system is read.
            self._look_at = time.monotonic() + min(_LOOK_S, waited / 10)
            if waited > _STUCK_S + asked["spread_s"]:
                self._end(path, f"The files of rank {missing[0]} did not arrive from its node", None)
                return False
            return True
        files = asked["files"]
        if (path / METADATA_NAME).exists():
            target = work / METADATA_NAME
            copied, _ = self._copy(path / METADATA_NAME, target, files[METADATA_NAME], 0.0, step)
            files = {METADATA_NAME: copied}
        self._end(path, "", installer.install(step, asked, files))
        return False

    def _end(self, path: Path, problem: str, manifest: dict[str, Any] | None) -> None:
        if (path / _REQUEST).exists():
            replace_file(self._root / _OUTCOME, json.dumps({"problem": problem, "manifest": manifest}))
        shutil.rmtree(path, ignore_errors=True)


def _register(pid: int) -> None:
    """Register a process in the launch's directory, so that the launch waits for it after the ranks."""
    launch = os.environ.get("GIPFEL_LAUNCH")
    if launch and Path(launch).is_dir():
        with suppress(OSError):
            (Path(launch) / "drains").mkdir(mode=0o700, exist_ok=True)
            (Path(launch) / "drains" / f"{os.uname().nodename}-{pid}").touch(mode=0o600)


def _lower_priority() -> None:
    """Lower this process's priority, so that training gets the cores, and with them the disks."""
    os.nice(_NICE)
    # With the kernel's autogroups, nice values count only within a session, and this is the session's own
    # value.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE))


def main(arguments: Sequence[str], on_phase: OnPhase = lambda _phase, _step: None) -> int:
    """Copy checkpoints from a node's directory to that of the checkpoints until standard input is closed."""
    root, directory = (Path(each) for each in arguments)
    # Slurm sends SIGTERM to every process of a step some seconds before SIGKILL; copying uses this time.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    _lower_priority()
    Drainer(root, directory, on_phase).run(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
