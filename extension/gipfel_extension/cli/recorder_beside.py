"""The recorder process beside a command: what becomes of it never touches the command."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.runs import LiveFolder

from ..telemetry.files import open_log, read_tail

_FLUSH_S = 30.0
_FIRST_SAMPLE_S = 5.0
_GLANCE_S = 0.02
_MOST_LOG = 64 << 10


class RecorderBeside:
    """A recorder in its own session, out of the terminal's reach; it ends with this process at the latest.

    Parameters
    ----------
    run
        The run folder.
    name
        Tells the recorders of one node apart.
    interval
        Seconds between two samples; None: as fast as the sources count, at most ten a second.
    environment
        The command's: it says which GPUs the job has. The tree below this process is the job.
    metrics, metrics_file
        GPU metrics beside the usual ones, and a file of JSON lines that the command writes.

    Raises
    ------
    OSError
        It can't be started.
    """

    def __init__(
        self,
        run: Path,
        *,
        node: str,
        name: str,
        interval: float | None,
        sources: Sequence[str],
        environment: Mapping[str, str],
        metrics: Sequence[str] = (),
        metrics_file: str = "",
    ) -> None:
        argv = [
            *(sys.executable, "-I", "-m", "gipfel_extension.recorder"),
            *("--telemetry", str(run / "telemetry"), "--node", node, "--name", name),
            *(() if interval is None else ("--interval", str(interval))),
            *("--root-pid", str(os.getpid())),
            *("--with-parent", str(os.getpid())),
        ]
        for source in sources:
            argv += ["--source", source]
        for metric in metrics:
            argv += ["--metric", metric]
        if metrics_file:
            file = Path(metrics_file).expanduser().absolute()
            # What the command writes while the recorder is loaded is of this run.
            start = file.stat().st_size if file.is_file() else 0
            argv += ["--metrics", str(file), "--metrics-start", str(start)]
        self._stream = LiveFolder.beside(run, node)
        if self._stream is not None:
            argv += ["--sockets", str(self._stream.path)]
        own = {key: value for key, value in environment.items() if "TOKEN" not in key}
        if "SLURM_JOB_ID" in own:
            # Slurm leaves it unset in a job without GPUs, which every CUDA program reads as "all of them".
            own.setdefault("CUDA_VISIBLE_DEVICES", "")
        self._telemetry = run / "telemetry"
        self._prefix = f"{node}-" if name == "job" else f"{name}-{node}-"
        self._log = run / f"recorder-{node}-{name}.log"
        log = open_log(self._log)
        try:
            self._process = subprocess.Popen(
                argv,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def stop(self) -> str:
        """End it, after 30 s by force; what went wrong with it as a sentence, or nothing.

        A command that ended at once has one sample all the same.
        """
        try:
            return self._stop()
        finally:
            if self._stream is not None:
                self._stream.remove()

    def _stop(self) -> str:
        self._await_first_sample()
        died = self._process.poll()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(_FLUSH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"The recorder didn't end within {_FLUSH_S:g} s and was killed."
        words = self._last_words()
        if died:
            return words or f"The recorder ended early, with status {died}."
        return words

    def _await_first_sample(self) -> None:
        deadline = time.monotonic() + _FIRST_SAMPLE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            # A segment begins with a sample.
            if any(self._telemetry.glob(f"{self._prefix}*.arrows")):
                return
            time.sleep(_GLANCE_S)

    def _last_words(self) -> str:
        try:
            line = read_tail(self._log, _MOST_LOG).decode(errors="replace").rstrip().rpartition("\n")[2]
            if not line:
                self._log.unlink()
        except OSError:
            return ""
        return line.partition(" recorder: ")[2] or line
