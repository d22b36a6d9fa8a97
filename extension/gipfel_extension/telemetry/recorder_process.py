"""`RecorderProcess`: the recorder that a kernel, a notebook server or ``gipfel record`` starts."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from gipfel_cluster.regular_files import last_line, open_log


class RecorderProcess:
    """Recorder as a child process; it ends with this process, even if this process is killed.

    Linux ends it with the thread that starts it, so this must be a thread that lives as long as the process.

    Parameters
    ----------
    telemetry
        Directory of the segments that it writes.
    name
        Distinguishes the recorders of one node.
    sources
        Names of sources, as for ``gipfel record --source``.
    interval
        Seconds between two samples; None for the update rate of its sources, at most ten per second.
    sockets
        Directory for its live stream; None for no stream.
    log
        File to which it writes one line per event.
    options
        Further options of ``python -m gipfel_extension.recorder``.
    environment
        Its environment variables, which name the job's GPUs; by default those of this process.

    Raises
    ------
    OSError
        It can't be started.
    """

    def __init__(
        self,
        telemetry: Path,
        *,
        node: str,
        name: str,
        sources: Iterable[str],
        interval: float | None,
        sockets: Path | None,
        log: Path,
        options: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        argv = [
            *(sys.executable, "-I", "-m", "gipfel_extension.recorder"),
            *("--telemetry", str(telemetry), "--node", node, "--name", name),
            *(() if sockets is None else ("--sockets", str(sockets))),
            *(() if interval is None else ("--interval", str(interval))),
            # Passed explicitly: if this process dies first, the recorder has another parent when it asks.
            f"--with-parent={os.getpid()}",
            *(f"--source={source}" for source in sources),
            *options,
        ]
        self.log = log
        with os.fdopen(open_log(log), "ab") as file:
            # In its own session, so that Ctrl-C in a terminal does not reach it.
            self._process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def exit_status(self) -> int | None:
        """Exit status of the recorder; None while it runs."""
        return self._process.poll()

    def stop(self, limit_s: float) -> bool:
        """End it, so that it flushes and closes its segment; kill it after `limit_s` and return False."""
        from gipfel_cluster.process.tree import end_child  # noqa: PLC0415 - pydantic

        return end_child(self._process, limit_s)

    def last_log_line(self) -> str:
        """Return the last line of its log without the time; empty without a line."""
        line = last_line(self.log)
        return line.partition(" recorder: ")[2] or line
