"""``gipfel record``: runs a command and records GPU and host metrics meanwhile."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from .recorded_run import CommandRecorder, RecordedRun


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
    from .foreground import NOT_EXECUTABLE, NOT_FOUND, Foreground  # noqa: PLC0415

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
    problem = recorder.stop() if recorder is not None else ""
    if problem:
        _say(problem)
    if run is None:
        return
    problem = run.finish(status)
    if problem:
        _say(problem)
    if run.first:
        from gipfel_cluster.job.recording import close_run, track_runs  # noqa: PLC0415

        close_run(run.path, os.environ, limit_s=_SCORE_S)
        track_runs(os.environ)
        hint = f"`gipfel score {_quote(run.path)}` shows its score"
        files = (run.path / "telemetry").glob("*")
        recorded = any(each.suffix in {".arrows", ".parquet"} for each in files)
        _say(f"the record of this run is {run.path}; {hint if recorded else 'it has no samples'}")


def _quote(path: Path) -> str:
    import shlex  # noqa: PLC0415

    return shlex.quote(str(path))


def _say(line: str) -> None:
    """Write a line to stderr, ignoring errors of a closed stream."""
    try:
        report_line(line)
    except (OSError, ValueError):
        # Otherwise Python would flush the stream at its exit and print an error.
        if sys.stderr is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
