"""Staging: copies of data on a job's nodes, made before its container starts.

Besides the options of a job, annotations of an EDF request it:

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

from ..model import Frozen, GipfelError, OneLine, split_list
from ..process.tree import end_child
from ..regular_files import last_line
from ..staged import ANNOTATION

MAX_PATHS = 64
#: How a path to stage begins: absolute, below the directory of a storage class, or an S3 address.
SOURCE = r"^(?:/|shared:|keep:|s3://)"
_POLL_S = 0.2
_END_S = 15.0
_LOG = "stage.log"


class StageRequest(Frozen):
    """Files and directories of the shared file system to copy to every node of a job.

    ``to`` is the kind of local storage. If a copy fails, ``on_failure`` decides whether the job continues, so
    that nodes without a copy read the shared file system, or stops.
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


def stage_request(annotations: Mapping[str, str], own: StageRequest | None = None) -> StageRequest | None:
    """Return the paths that EDF and job (``own``) request, with the job's other settings; None without paths.

    Raises
    ------
    GipfelError
        The EDF's annotations are not valid.
    """
    listed = split_list(f"{annotations.get(ANNOTATION, '')} {annotations.get(f'{ANNOTATION}.data', '')}")
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
    """Copy data to all nodes of this job and wait until that is done; return a note on the result.

    A process that ends with the job holds the copies until then.

    Raises
    ------
    GipfelError
        Staging failed, and the request's ``on_failure`` is ``stop``.
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
    words = last_line(log).removeprefix("gipfel: ")[:500]
    if status and request.on_failure == "stop":
        raise GipfelError(f"The data could not be staged: {words}", "Start without it, or with `continue`.")
    return words if not status else f"Not staged, so the shared files are read: {words}"
