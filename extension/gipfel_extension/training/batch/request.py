"""Values of the dialog in which a batch notebook is submitted, also of an earlier job."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen

from .submitted import SubmittedNotebook

#: Fields of a request that are options of ``gipfel submit`` as they are.
SHARED_FIELDS = {
    *("scheduler", "edf", "nodes", "gpus_per_node", "time"),
    *("partition", "account", "qos", "reservation", "memory", "resume"),
}


class BatchRequest(Frozen):
    """Values of the dialog: paths relative to the server's root, and texts as typed (empty: the default)."""

    path: str = Field(min_length=1, max_length=4096)
    output: str = Field(min_length=1, max_length=4096)
    parameters: dict[str, str] = Field(default_factory=dict, max_length=1000)
    grid: dict[str, str] = Field(default_factory=dict, max_length=100)
    scheduler: str = Field("", max_length=32)
    edf: str = Field("", max_length=4096)
    nodes: int = Field(1, ge=1, le=65536)
    gpus_per_node: int = Field(0, ge=0, le=1024)
    time: str = Field("", max_length=20)
    partition: str = Field("", max_length=128)
    account: str = Field("", max_length=128)
    qos: str = Field("", max_length=128)
    reservation: str = Field("", max_length=128)
    memory: str = Field("", max_length=10)
    resume: bool = False


def request_of(submission: SubmittedNotebook, root: Path) -> dict[str, Any] | None:
    """Return the values of the dialog with which the job is submitted again; None if it can't show them."""
    options, given = submission.options, submission.directory
    others = (options.parameters_raw, options.parameters_yaml, options.parameters_file)
    notebook, output = given / options.notebook, given / options.output
    if any(others) or not (notebook.is_relative_to(root) and output.is_relative_to(root)):
        return None
    axes = (axis.partition("=") for axis in options.grid)
    try:
        request = BatchRequest(
            path=notebook.relative_to(root).as_posix(),
            output=output.relative_to(root).as_posix(),
            parameters=dict(options.parameters),
            grid={name: values for name, _, values in axes},
            **options.model_dump(include=SHARED_FIELDS) | {"scheduler": submission.scheduler},
        )
    except ValidationError:
        return None
    return request.model_dump()
