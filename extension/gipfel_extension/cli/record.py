"""``gipfel record``: any command, with a recorder beside it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .live_table import examples, tell

if TYPE_CHECKING:
    from .recorded_run import RecordedRun
    from .recorder_beside import RecorderBeside


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "gipfel record -- python train.py --lr 0.1",
        "gipfel record --interval 0.1 --runs ./runs -- ./benchmark",
        "gipfel record --metrics train.jsonl -- python train.py --log train.jsonl",
        "srun --nodes=2 --ntasks-per-node=4 gipfel record -- python train.py",
    ),
)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--runs",
    default="",
    metavar="DIR",
    help="Where the run folder goes; by default $GIPFEL_RUNS, else ~/.gipfel/runs.",
)
@click.option(
    "--interval",
    default=None,
    type=click.FloatRange(0.1, 60.0),
    metavar="S",
    help="Seconds between two samples. By default 0.1 where the GPUs count that fast (GPM), with means over "
    "1 s in the live stream; else 1.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="S",
    help="auto, nvml, dcgm, amdsmi, host, exporter:URL, prometheus:URL, replay:FILE, synthetic:training and "
    "others, also several; by default host and auto, which is the job's GPUs.",
)
@click.option(
    "--metric",
    "extra",
    multiple=True,
    metavar="NAME",
    help="A GPU metric beside the usual ones, by DCGM's name, such as NVDEC0_ACTIVE; also several.",
)
@click.option(
    "--metrics",
    default="",
    metavar="FILE",
    help='A file of JSON lines that CMD writes, such as {"step": 1, "loss": 0.5}: metrics of the run.',
)
def record(
    *,
    command: tuple[str, ...],
    runs: str,
    interval: float | None,
    sources: tuple[str, ...],
    extra: tuple[str, ...],
    metrics: str,
) -> int:
    """Run CMD and record what its GPUs and the host do meanwhile, in a run folder of its own.

    CMD has this terminal, its streams and signals, and its exit status is returned: 128 + n after signal n,
    127 where there is no such program. Whatever becomes of the record, CMD runs on. In CMD $GIPFEL_RUN names
    the run folder, so that gipfel_widgets.log(loss=...) writes beside the samples. In a Slurm step with
    several tasks one recorder per node writes into one folder. Meanwhile Saturation(run=...) in a notebook
    on the same node shows it live; at the end score.json holds what `gipfel score --json` says.
    """
    from .foreground import NOT_EXECUTABLE, NOT_FOUND, Foreground  # noqa: PLC0415

    foreground = Foreground()
    run = _made(Path(runs).expanduser() if runs else None, command, interval, sources)
    recorder = _started(run, extra, metrics)
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
    except Exception as error:  # noqa: BLE001 - the command's exit status is what counts
        _say(f"The record may lack its end: {error}")
    return status


def _made(
    runs: Path | None, command: tuple[str, ...], interval: float | None, sources: tuple[str, ...]
) -> "RecordedRun | None":
    from .recorded_run import RecordedRun  # noqa: PLC0415

    try:
        return RecordedRun.create(
            runs, command, interval=interval, sources=sources or ("host", "auto"), environment=os.environ
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the command runs without a record
        _say(f"Nothing is recorded: {error}")
        return None


def _started(run: "RecordedRun | None", extra: tuple[str, ...], metrics: str) -> "RecorderBeside | None":
    if run is None or not run.sources:
        return None
    from .recorder_beside import RecorderBeside  # noqa: PLC0415

    try:
        return RecorderBeside(
            run.path,
            node=run.node,
            name=run.recorder,
            interval=run.interval,
            sources=run.sources,
            environment=os.environ,
            metrics=extra,
            # Of several tasks the first takes over what is in the file.
            metrics_file=metrics if run.first else "",
        )
    except OSError as error:
        _say(f"Nothing is recorded: the recorder can't be started: {error.strerror}.")
        return None


#: Longer than this nobody waits at a command's end for its score; `gipfel score` makes up for it.
_SCORE_S = 30.0


def _end(run: "RecordedRun | None", recorder: "RecorderBeside | None", status: int) -> None:
    problem = recorder.stop() if recorder is not None else ""
    if problem:
        _say(problem)
    if run is None:
        return
    problem = run.finish(status)
    if problem:
        _say(problem)
    if run.first:
        from gipfel_cluster.job.recording import close_run  # noqa: PLC0415

        close_run(run.path, os.environ, limit_s=_SCORE_S)
        worth = f"`gipfel score {_word(run.path)}` shows what it was worth"
        files = (run.path / "telemetry").glob("*")
        recorded = any(each.suffix in {".arrows", ".parquet"} for each in files)
        _say(f"the record of this run is {run.path}; {worth if recorded else 'no samples are in it'}")


def _word(path: Path) -> str:
    import shlex  # noqa: PLC0415

    return shlex.quote(str(path))


def _say(line: str) -> None:
    """A line on stderr, if somebody can take it."""
    try:
        tell(line)
    except (OSError, ValueError):
        # Python would write what it still holds once more at its end, and complain.
        if sys.stderr is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
