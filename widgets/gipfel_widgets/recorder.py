"""A recorder that a kernel starts itself."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

from gipfel_cluster.model import GipfelError
from gipfel_extension.telemetry.files import open_log, read_tail
from gipfel_extension.telemetry.store.segments import read_samples

from .run import KernelRun, node_name

_FIRST_SAMPLE_S = 20.0
_END_S = 5.0
_MOST_LOG = 64 << 10
_GLANCE_S = 0.1


class KernelRecorder:
    """A recorder process beside the kernel, which ends with the kernel also when that is killed.

    Parameters
    ----------
    run
        A run of the kernel's own, with a folder for sockets.
    name
        ``job``, or ``simulated`` where the source is.
    sources
        What it reads, by the names of ``--source``.
    interval
        Seconds between two samples; None: as fast as the sources count, at most ten a second.
    """

    def __init__(self, run: KernelRun, name: str, sources: tuple[str, ...], interval: float | None) -> None:
        self._run = run
        self._name = name
        self._sources = sources
        self._interval = interval
        self._log = run.path / f"recorder-{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for the first sample, at most 20 s.

        Raises
        ------
        GipfelError
            It can't be started, ended at once, or nothing came in time.
        """
        argv = [
            *(sys.executable, "-I", "-m", "gipfel_extension.telemetry.recorder"),
            *("--telemetry", str(self._run.telemetry)),
            *("--sockets", str(self._run.sockets)),
            *("--node", node_name(os.environ)),
            *("--name", self._name),
            *(() if self._interval is None else ("--interval", str(self._interval))),
            *("--root-pid", str(os.getpid())),
            # Named: whose child it is when it has been loaded says nothing of who started it.
            f"--with-parent={os.getpid()}",
        ]
        for source in self._sources:
            argv += ["--source", source]
        try:
            with os.fdopen(open_log(self._log), "ab") as log:
                # Out of the terminal's reach: Ctrl-C interrupts the kernel, not the record of what it did.
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise GipfelError(f"The recorder can't be started: {error.strerror}.") from error
        try:
            self._await_first_sample(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it: it writes what it holds and closes its segment, or is killed after 5 s."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._run.sockets is not None:
            shutil.rmtree(self._run.sockets, ignore_errors=True)

    def _await_first_sample(self, process: subprocess.Popen[bytes]) -> None:
        patience = _FIRST_SAMPLE_S + (self._interval or 1.0)
        deadline = time.monotonic() + patience
        while not read_samples(self._run.telemetry).rows:
            if process.poll() is not None:
                raise GipfelError(self._last_words() or "The recorder ended at once.")
            if time.monotonic() > deadline:
                raise GipfelError(f"No sample came within {patience:g} s.", f"Look into {self._log}.")
            time.sleep(_GLANCE_S)

    def _last_words(self) -> str:
        try:
            line = read_tail(self._log, _MOST_LOG).decode(errors="replace").rstrip().rpartition("\n")[2]
        except OSError:
            return ""
        return line.partition(" recorder: ")[2] or line
