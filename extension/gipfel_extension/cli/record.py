"""``gipfel record``: runs a command in the foreground and records GPU and host metrics meanwhile."""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from .recorded_run import CommandRecorder, RecordedRun

_FORWARDED = tuple(
    getattr(signal, name)
    for name in (
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGTERM",
        "SIGUSR1",
        "SIGUSR2",
        "SIGALRM",
        "SIGXCPU",
        "SIGWINCH",
    )
)
#: Time within which a signal to a whole process group or job has reached all its processes.
_GROUP_DELAY_S = 0.1
NOT_FOUND, NOT_EXECUTABLE = 127, 126


class Foreground:
    """Runner of one command with this process's terminal, streams, directory, process group and open files.

    Each signal reaches the command once. A signal to the whole process group (Ctrl-C) or job (Slurm) reaches
    the command directly; a signal to this process alone is forwarded. To distinguish them, a monitor
    process in the same group reports the signals that it receives, which are those to the whole group.
    """

    def __init__(self) -> None:
        self._signals, wake = os.pipe()
        os.set_blocking(wake, False)
        # Signals that the caller ignores, such as with nohup, stay ignored here and in the command.
        self._handled = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
        for number in (*self._handled, signal.SIGCHLD):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._reports, self._lifetime, self._monitor = _monitor()

    def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end and return its exit status, 128 + n after signal n.

        Raises
        ------
        OSError
            The command can't be started.
        """
        # The command inherits the caller's other open files; this process's own are closed on exec.
        child = subprocess.Popen(argv, env=dict(environment), close_fds=False)
        _close_inherited_files()
        to_this_process: dict[int, float] = {}
        to_group: dict[int, float] = {}
        while (status := child.poll()) is None:
            due = min(to_this_process.values(), default=None)
            patience = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select(
                [each for each in (self._signals, self._reports) if each >= 0], [], [], patience
            )
            now = time.monotonic()
            if self._reports in ready:
                self._listen(to_this_process, to_group, now)
            if self._signals in ready:
                for number in os.read(self._signals, 512):
                    if number in self._handled and to_group.pop(number, 0.0) < now - _GROUP_DELAY_S:
                        to_this_process[number] = now + _GROUP_DELAY_S
            for number in [number for number, until in to_this_process.items() if until <= now]:
                if self._reports >= 0 and _is_pending(self._monitor, number):
                    # On a busy machine the monitor has not run yet, and its report is still to come.
                    to_this_process[number] = now + _GROUP_DELAY_S
                    continue
                del to_this_process[number]
                child.send_signal(number)
        return 128 - status if status < 0 else status

    def close(self) -> None:
        """End the monitor process; later signals are no longer forwarded."""
        os.close(self._lifetime)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._monitor, 0)

    def _listen(self, to_this_process: dict[int, float], to_group: dict[int, float], now: float) -> None:
        """Read the monitor's signals, which have reached the whole group and must not be forwarded."""
        numbers = os.read(self._reports, 512)
        if not numbers:
            # The monitor was killed; from now on every signal is forwarded.
            os.close(self._reports)
            self._reports = -1
        for number in numbers:
            if to_this_process.pop(number, None) is None:
                to_group[number] = now


def _is_pending(pid: int, number: int) -> bool:
    """Return whether a process has been sent a signal that it has not handled yet; False if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = (line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal by doing nothing: its number was already written to the wakeup pipe."""


def _monitor() -> tuple[int, int, int]:
    """Start the monitor process, which handles the same signals as this process.

    Returns
    -------
    tuple[int, int, int]
        The pipe on which it reports each signal's number; the pipe that ends it when it is closed (also by
        the end of this process); and its PID.
    """
    reports, report_end = os.pipe()
    lifetime_end, lifetime = os.pipe()
    process = os.fork()
    if process:
        os.close(report_end)
        os.close(lifetime_end)
        return reports, lifetime, process
    try:
        os.close(lifetime)
        os.set_blocking(report_end, False)
        signal.set_wakeup_fd(report_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in _open_files() - {lifetime_end, report_end}:
            with contextlib.suppress(OSError):
                os.close(each)
        os.read(lifetime_end, 1)
    finally:
        os._exit(0)


def _close_inherited_files() -> None:
    """Close the files that the command has inherited, so that only the command keeps its output open."""
    null = os.open(os.devnull, os.O_RDWR)
    for each in _open_files():
        if each in (0, 1):
            os.dup2(null, each)
        elif each > 2 and os.get_inheritable(each):
            os.close(each)
    os.close(null)


def _open_files() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - numbers, no paths
    # The list includes the descriptor of the listing itself, which is closed by now.
    return {each for each in found if _is_open(each)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "gipfel record -- python train.py --lr 0.1",
        "gipfel record --interval 0.1 --runs ./runs -- ./benchmark",
        "gipfel record --metrics train.jsonl -- python train.py --log train.jsonl",
        "gipfel record --metrics outputs/ -- python train.py",
        "srun --nodes=2 --ntasks-per-node=4 gipfel record -- python train.py",
    ),
)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--runs",
    default="",
    metavar="DIR",
    help="Directory of the run folder; by default $GIPFEL_RUNS, else ~/.gipfel/runs.",
)
@click.option(
    "--interval",
    default=None,
    type=click.FloatRange(0.1, 60.0),
    metavar="S",
    help="Seconds between two samples. By default 0.1 if the GPUs support it (GPM), with means over 1 s in "
    "the live stream; else 1.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="S",
    help="auto, nvml, dcgm, amdsmi, host, exporter:URL, prometheus:URL, replay:FILE, synthetic:training and "
    "others; may be repeated. By default host and auto, which are the job's GPUs.",
)
@click.option(
    "--metric",
    "extra",
    multiple=True,
    metavar="NAME",
    help="An additional GPU metric by its DCGM name, such as NVDEC0_ACTIVE; may be repeated.",
)
@click.option(
    "--metrics",
    default="",
    metavar="FILE|DIR",
    help='What CMD logs becomes metrics of the run: a file of JSON lines, such as {"step": 1, "loss": 0.5}, '
    "or a directory of TensorBoard, CSV, MLflow or Trainer files; `gipfel metrics --help` lists them.",
)
@click.option(
    "--metrics-pattern",
    "pattern",
    default="",
    metavar="REGEX",
    help="The files of --metrics are logs, and this is in their lines: "
    "'step (?P<step>\\d+) .*loss (?P<loss>\\S+)'; `gipfel metrics --help` tells more.",
)
def record(
    *,
    command: tuple[str, ...],
    runs: str,
    interval: float | None,
    sources: tuple[str, ...],
    extra: tuple[str, ...],
    metrics: str,
    pattern: str,
) -> int:
    """Run CMD and record metrics of its GPUs and the host in a new run folder.

    CMD uses this terminal, its streams and signals, and its exit status is returned: 128 + n after signal n,
    127 if there is no such program. CMD keeps running even if the recording fails. $GIPFEL_RUN in CMD is the
    run folder, to which gipfel_widgets.log(loss=...) adds metrics. In a Slurm step with several tasks, one
    recorder per node writes into one folder. Saturation(run=...) in a notebook on the same node shows the
    running command live; at its end score.json contains the output of `gipfel score --json`.
    """
    if pattern:
        _check_pattern(pattern, metrics)
    foreground = Foreground()
    run = _made(Path(runs).expanduser() if runs else None, command, interval, sources)
    recorder = _started(run, extra, metrics, pattern)
    environment = {**os.environ, "GIPFEL_RUN": str(run.path)} if run else dict(os.environ)
    try:
        status = foreground.run(command, environment)
    except OSError as error:
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        _say(f"{command[0]} can't be run: {error.strerror}.")
    except ValueError as error:
        status = NOT_EXECUTABLE
        _say(f"{command[0]!r} can't be run: {error}.")
    try:
        _end(run, recorder, status)
        foreground.close()
    except Exception as error:  # noqa: BLE001 - recording must not affect the command
        _say(f"The record may be incomplete: {error}")
    return status


def _made(
    runs: Path | None, command: tuple[str, ...], interval: float | None, sources: tuple[str, ...]
) -> "RecordedRun | None":
    from .recorded_run import RecordedRun  # noqa: PLC0415

    try:
        return RecordedRun.create(
            runs, command, interval=interval, sources=sources or ("host", "auto"), environment=os.environ
        )
    except Exception as error:  # noqa: BLE001 - recording must not affect the command
        _say(f"Nothing is recorded: {error}")
        return None


def _check_pattern(pattern: str, metrics: str) -> None:
    from ..tracking.text_formats import LogPattern, PatternError  # noqa: PLC0415

    try:
        LogPattern(pattern)
    except PatternError as error:
        raise click.UsageError(f"{error.problem} {error.fix}") from error
    if not metrics:
        raise click.UsageError("Name the log, or a directory of logs: --metrics FILE.")


def _started(
    run: "RecordedRun | None", extra: tuple[str, ...], metrics: str, pattern: str
) -> "CommandRecorder | None":
    if run is None or not run.sources:
        return None
    from .recorded_run import CommandRecorder  # noqa: PLC0415

    try:
        return CommandRecorder(
            run.path,
            node=run.node,
            name=run.recorder,
            interval=run.interval,
            sources=run.sources,
            environment=os.environ,
            metrics=extra,
            # Of several tasks, only the first one reads the file.
            metrics_file=metrics if run.first else "",
            metrics_pattern=pattern if run.first else "",
        )
    except OSError as error:
        _say(f"Nothing is recorded: the recorder can't be started: {error.strerror}.")
        return None


#: Time limit for computing the score at the command's end; `gipfel score` can compute it later.
_SCORE_S = 30.0


def _end(run: "RecordedRun | None", recorder: "CommandRecorder | None", status: int) -> None:
    problems = ["" if recorder is None else recorder.stop(), "" if run is None else run.finish(status)]
    for problem in filter(None, problems):
        _say(problem)
    if run is not None and run.first:
        from gipfel_cluster.job.recording import close_run, track_runs  # noqa: PLC0415

        close_run(run.path, os.environ, limit_s=_SCORE_S)
        track_runs(os.environ)
        hint = f"`gipfel score {shlex.quote(str(run.path))}` shows its score"
        files = (run.path / "telemetry").glob("*")
        recorded = any(each.suffix in {".arrows", ".parquet"} for each in files)
        _say(f"the record of this run is {run.path}; {hint if recorded else 'it has no samples'}")


def _say(line: str) -> None:
    """Write a line to stderr, ignoring errors of a closed stream."""
    try:
        report_line(line)
    except (OSError, ValueError):
        # Otherwise Python would flush the stream at its exit and print an error.
        if sys.stderr is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
