"""What a job does, as the submitting side says it and the node reads it."""

from typing import Literal

from pydantic import Field, JsonValue

from ..model import Frozen, Line

#: The environment variable that carries a `JobSpec` as JSON from the submitting side to the node.
JOB_VARIABLE = "GIPFEL_JOB"

#: As the first word of a command, the interpreter of the runtime inside the container.
PYTHON = "{python}"


class JobSpec(Frozen):
    """A notebook server, a batch notebook or a training launch, with a recorder beside it.

    The command of a launch runs on the host; it starts steps in the containers of the EDF.
    """

    kind: Literal["server", "notebook", "launch"]
    command: tuple[str, ...] = Field(min_length=1, max_length=4096)
    """What runs inside the environment; `PYTHON` stands for the interpreter there."""
    cluster: Line = Field("local", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")
    edf: Line = Field("", max_length=4096)
    """Name or path of the EDF; empty for the node's own file system."""
    engine: Line = Field("bubblewrap", max_length=32)
    """The engine for an EDF with an image."""
    runtime: Line = Field("", max_length=4096)
    """The runtime, a folder or a .sqsh file; empty for the interpreter that runs the job."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """What the user chose, for the record."""
    interval: float | None = Field(None, ge=0.1, le=60.0)
    """Seconds between two samples; None is 0.1 where the GPUs count that fast, with means of 1 s in the live
    stream, and else 1."""
    sources: tuple[Line, ...] = ("host", "auto")
    """Where the recorder's samples come from."""
    directory: Line = Field("", max_length=4096)
    """Where relative paths of the EDF start, and where a notebook runs; empty for the home folder."""
    folders: tuple[Line, ...] = Field((), max_length=16)
    """More folders of the host that the job needs inside its container, at the same path."""
