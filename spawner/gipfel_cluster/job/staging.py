"""Data that a job wants on its nodes before its work begins, and staging before a container starts.

An EDF requests it by annotations, beside the options of a job:

``com.gipfel.stage``, or in a table with the next ones ``com.gipfel.stage.data``
    Absolute paths, below a storage class, or of S3: ``/scratch/imagenet.sqsh keep:model s3://sets/a.sqsh``.
``com.gipfel.stage.to``, ``com.gipfel.stage.on_failure``
    ``auto`` (default), ``nvme`` or ``memory``; ``continue`` (default) on the shared file system, or ``stop``.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from ..model import Frozen, GipfelError, OneLine
from ..process.tree import end_child
from ..regular_files import read_tail
from ..staged import ANNOTATION

MAX_PATHS = 64
#: The begin of a path to stage: absolute, below the directory of a storage class, or an address of S3.
SOURCE = r"^(?:/|shared:|keep:|s3://)"
_POLL_S = 0.2
_END_S = 15.0
_LOG = "stage.log"
_LOG_BYTES = 64 << 10


class StageRequest(Frozen):
    """Files and directories of the shared file system to copy to every node of a job.

    ``to`` is the tier; with ``on_failure`` ``continue``, nodes without a copy read the shared file system.
    """

    data: tuple[Annotated[OneLine, Field(pattern=SOURCE, max_length=4096)], ...] = Field(
        min_length=1, max_length=MAX_PATHS
    )
    to: Literal["auto", "nvme", "memory"] = "auto"
    on_failure: Literal["continue", "stop"] = "continue"

    @field_validator("data")
    @classmethod
    def _differ(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value))


def split_paths(text: str) -> tuple[str, ...]:
    """Return the paths of a list that is separated by spaces or commas."""
    return tuple(text.replace(",", " ").split())


def stage_request(annotations: Mapping[str, str], own: StageRequest | None = None) -> StageRequest | None:
    """Return what an EDF and a job want staged together; the job's tier and action on failure are used.

    Raises
    ------
    GipfelError
        The EDF's annotations are not valid.
    """
    listed = split_paths(f"{annotations.get(ANNOTATION, '')} {annotations.get(f'{ANNOTATION}.data', '')}")
    if not listed:
        return own
    values = {
        name: value
        for name in ("to", "on_failure")
        if (value := annotations.get(f"{ANNOTATION}.{name}")) is not None
    }
    try:
        found = StageRequest.model_validate({"data": listed, **values})
        if own is None:
            return found
        return StageRequest(data=(*own.data, *found.data), to=own.to, on_failure=own.on_failure)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise GipfelError(
            f"The EDF's annotation {ANNOTATION} is not valid: {first['msg']}.",
            "Write absolute paths, or such as shared:imagenet.sqsh, and the tier auto, nvme or memory.",
        ) from error


def stage_before_start(
    request: StageRequest, run: Path, environment: Mapping[str, str], stopped: Callable[[], bool]
) -> str:
    """Stage data on all nodes of this job, and wait for it; return a note on what was done.

    The copies are kept by a process that ends with the job.

    Raises
    ------
    GipfelError
        It failed, and the request is to stop then.
    """
    argv = [sys.executable, "-I", "-m", "gipfel_extension.cli", "data", "stage"]
    argv += [f"--to={request.to}", f"--on-failure={request.on_failure}", "--", *request.data]
    log = run / _LOG
    with log.open("ab") as messages:
        process = subprocess.Popen(
            argv,
            env={**environment, "GIPFEL_RUN": str(run)},
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            start_new_session=True,
        )
        while (status := process.poll()) is None and not stopped():
            time.sleep(_POLL_S)
    if status is None:
        end_child(process, _END_S)
        return "The staging was stopped."
    words = _last_line(log)
    if status and request.on_failure == "stop":
        raise GipfelError(f"The data could not be staged: {words}", "Start without it, or with `continue`.")
    return words if not status else f"Not staged, so the shared files are read: {words}"


def _last_line(log: Path) -> str:
    try:
        lines = read_tail(log, _LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("gipfel: ") for line in reversed(lines) if line.strip()), "")[:500]
