"""``python -m gipfel_extension.training.papermill NOTEBOOK OUTPUT``: the command of a batch notebook's job.

The parameters are in the run's record, because all users on the node can read an argv. In a job array OUTPUT
is a template, and the task ID selects the point of the grid. A job that Slurm has requeued resumes where it
stopped.
"""

import argparse
import contextlib
import logging
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.runs import RunFolder

from ...telemetry.events import report_failure
from ...telemetry.files import read_json
from .notebook_file import MAX_NOTEBOOK_BYTES, kernel_of
from .parameters import Grid
from .progress import report_line
from .values import from_yaml


class Task(Frozen):
    """Parameters, output and resumption of one job or array task."""

    parameters: dict[str, Any]
    output: Path
    resume: bool


def main(arguments: Sequence[str]) -> int:
    """Run a notebook; return 0, 1 if a cell failed, 138 if the kernel died, 128 + n after signal n."""
    given = _parser().parse_args(arguments)
    # Keeps ANSI codes and paths of papermill out of the job's log.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        task = task_of(given.output, given.resume, os.environ)
        _restrict_log(task.output)
        problem = _offer_kernel(given.kernel or kernel_of(given.notebook))
        if problem:
            report_line(f"{problem} The notebook runs with Gipfel's Python instead.")
        from .engine import run_notebook  # noqa: PLC0415 - papermill takes a second to import

        outcome = run_notebook(
            given.notebook,
            task.output,
            task.parameters,
            resume=task.resume,
            strict=given.strict,
            kernel=given.kernel,
            directory=given.directory,
            log_output=True,
        )
    except GipfelError as error:
        return _fail(f"The notebook can't be run: {error}")
    except OSError as error:
        return _fail(
            f"The notebook can't be run: {error.strerror or error} ({error.filename or task.output})"
        )
    if outcome.problem:
        end = "ended early" if outcome.state == "died" else outcome.state
        _fail(f"The notebook {'was ' if outcome.signal else ''}{end}: {outcome.problem}")
    return outcome.exit_status


def _fail(problem: str) -> int:
    """Report a problem in the log, and to the job, which notifies its user; return 1."""
    report_line(problem)
    report_failure(os.environ, problem)
    return 1


def task_of(output: Path, resume: bool, environment: Mapping[str, str]) -> Task:  # noqa: FBT001 - a flag as typed
    """Return the task of this process: its point of the grid, and whether it resumes.

    Raises
    ------
    GipfelError
        The run's record can't be read, or its grid has no such point.
    """
    run = RunFolder(Path(environment["GIPFEL_RUN"])) if environment.get("GIPFEL_RUN") else None
    options = run.read_record().get("options", {}) if run else {}
    texts = dict(options.get("parameters", ()))
    grid = Grid.model_validate({"axes": options.get("grid", ())})
    if grid.axes:
        number = _task_number(environment)
        if number >= len(grid):
            raise GipfelError(
                f"The grid has {len(grid)} points, but this is task {number}.", "Submit the notebook again."
            )
        texts |= grid.point(number)
        output = grid.output(output, number)
    requeued = environment.get("SLURM_RESTART_COUNT", "0") not in {"", "0"}
    return Task(
        parameters={name: from_yaml(text) for name, text in texts.items()},
        output=output,
        # After a requeue, an output of another job is not resumed.
        resume=resume or (requeued and run is not None and _run_of(output) == run.name),
    )


def _restrict_log(output: Path) -> None:
    """Give the log the permissions of the output, because it has the same content."""
    try:
        mode = output.stat().st_mode & 0o666
    except OSError:
        mode = 0o600
    for stream in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(stream).st_mode):
                os.fchmod(stream, mode | 0o600)


def _task_number(environment: Mapping[str, str]) -> int:
    for name in ("SLURM_ARRAY_TASK_ID", "GIPFEL_ARRAY_TASK_ID"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    raise GipfelError(
        "This process is not an array task, but the notebook has a grid.", "Submit the notebook again."
    )


def _run_of(output: Path) -> str:
    try:
        return str(read_json(output, MAX_NOTEBOOK_BYTES, follow=True)["metadata"]["gipfel"]["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _offer_kernel(name: str) -> str:
    from ...kernels import NATIVE_KERNEL, offer_image_kernel  # noqa: PLC0415 - a higher layer

    problem = offer_image_kernel(os.environ)
    return problem if problem and name == NATIVE_KERNEL else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gipfel_extension.training.papermill")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--kernel", default="")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--strict", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
