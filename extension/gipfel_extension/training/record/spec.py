"""Spec and plan of a launch: `LaunchSpec` is the user's request, `LaunchPlan` adds resolved paths."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from gipfel_cluster.broker.context import is_system_directory
from gipfel_cluster.edf import Mount
from gipfel_cluster.edf.gate import Gate, Gates
from gipfel_cluster.job.staging import StageRequest
from gipfel_cluster.model import Frozen, GipfelError, OneLine
from gipfel_cluster.scheduler import JobRequest
from gipfel_cluster.scheduler.protocol import Hostlist, Placement
from gipfel_cluster.workloads.submission import SubmissionContext

from ...telemetry.files import read_regular
from ...telemetry.redaction import redact_command_line
from . import MAX_BYTES, PLAN

LaunchKind = Literal["script", "module", "notebook", "cell"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY", re.IGNORECASE)
_MAX_CODE = 1 << 20
_RANGE = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?")
#: A path as the user's process sees it, which may be in a container.
_Path = Annotated[OneLine, Field(max_length=4096)]


class LaunchSpec(Placement):
    """A training launch.

    ``target`` is the path of a script or notebook, or the name of a module; ``code`` is the code of a cell.
    ``arguments`` are passed to a script or module unchanged, ``parameters`` to a notebook or cell. The launch
    is elastic if ``nodes_min`` is less than ``nodes``. Without GPUs ``gpus_per_node`` is the number of ranks
    on each node. ``environment`` are variables of the ranks, ``exclude`` nodes that must not be used;
    without ``preflight`` the checks before the start are skipped.
    """

    kind: LaunchKind = "script"
    target: _Path = ""
    code: str = Field("", max_length=_MAX_CODE)
    arguments: tuple[str, ...] = Field((), max_length=4096)
    parameters: dict[str, JsonValue] = Field(default_factory=dict)
    name: Annotated[OneLine, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")] = "launch"
    in_job: bool | None = None
    """True: on free GPUs of the current job; False: in a new job; None: in the current job, if any."""
    edf: _Path = ""
    """Environment (EDF) of the ranks; empty for that of the current job, or no container if there is none."""
    launcher: Literal["torchrun", "srun", "accelerate"] = "torchrun"
    nodes: int = Field(1, ge=1, le=65536)
    nodes_min: int | None = Field(None, ge=1, le=65536)
    gpus_per_node: int = Field(1, ge=1, le=1024)
    restarts: int = Field(0, ge=0, le=1000)
    """How often failed ranks are restarted before the launch counts as failed."""
    kernel: OneLine = Field("", max_length=256)
    """Kernel of a notebook; empty for the notebook's kernel, or python3 if that is not installed."""
    environment: dict[str, str] = Field(default_factory=dict, max_length=256)
    directory: _Path = ""
    """Directory in which ranks start; empty for the current one."""
    exclude: Hostlist = ""
    scheduler: OneLine = Field("", max_length=32)
    engine: OneLine = Field("", max_length=32)
    """Container engine, such as ``podman``; empty for the configured one."""
    runtime: _Path = ""
    """Directory with Gipfel's own Python for the nodes; empty for the caller's."""
    cluster: OneLine = Field("", max_length=32)
    vetting: _Path = ""
    """Protocol of health checks, by name or path, that the nodes must pass; empty for none."""
    checkpoint: _Path = ""
    """Writable directory of the program's checkpoints. ``keep:runs/7`` is ``runs/7`` in the site's storage
    class ``keep``, see `gipfel_cluster.storage_classes`."""
    min_free_gib: float = Field(0.0, ge=0)
    """Free space in GiB that the checkpoint directory must have."""
    on_preempt: Literal["requeue", "end"] = "requeue"
    """Action when the job is preempted, after the checkpoint: requeue the job, or end."""
    grace_s: float = Field(60.0, ge=1, le=3600)
    """Seconds that ranks have to end after SIGUSR1. They get it when the job is preempted, and this time plus
    a margin before its time limit."""
    join_timeout_s: float = Field(30.0, ge=0, le=3600)
    """Seconds for which an elastic launch waits for more nodes after ``nodes_min`` have joined."""
    layout: OneLine = Field("", max_length=200)
    """Sizes of parallel axes, such as ``pp=2,dp=4``, the last of which changes fastest from rank to rank."""
    profile: bool = False
    """Write a trace of torch's profiler for every rank."""
    step_hooks: bool = True
    """Log the steps of every rank without a change of its program."""
    hang_after_s: float = Field(300.0, ge=0, le=86_400)
    """Minimum time in seconds without a step before a hang is reported; 0 for no alarm."""
    metrics_pattern: str = Field("", max_length=4096)
    """Regular expression whose named groups are metrics in the lines of the ranks' logs; empty for none."""
    network: Gate | None = None
    """Gate of the launch, with the hosts that ranks may reach; None if only the gates of the EDF and the site
    apply, if there are any."""
    stage: StageRequest | None = None
    """Data to copy to the nodes before the ranks start, in addition to what the EDF requests."""
    preflight: bool = True
    python: OneLine = Field("", pattern=r"^(/|$)", max_length=4096)
    """Interpreter of ranks without a container; empty for that of the caller's environment."""
    resume: bool = False
    """Set ``GIPFEL_RESUME=1``, so that ranks resume from their checkpoint."""

    @field_validator("environment")
    @classmethod
    def _holds_variables_and_no_secret(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if not _VARIABLE.fullmatch(name) or "\0" in content:
                raise ValueError(f"{name[:40]!r} can't be an environment variable")
            if _SECRET.search(name):
                raise ValueError(
                    f"{name[:40]} looks like a secret, which the launch would write to its spec: keep it "
                    "in a file that the program reads"
                )
        return value

    @field_validator("arguments")
    @classmethod
    def _can_be_arguments(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any("\0" in word for word in value):
            raise ValueError("an argument holds a NUL character")
        return value

    @field_validator("metrics_pattern")
    @classmethod
    def _is_a_pattern(cls, value: str) -> str:
        if value:
            from ...tracking.text_formats import LogPattern  # noqa: PLC0415 - pyarrow is slow to import

            LogPattern(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> "LaunchSpec":
        is_notebook = self.kind in {"notebook", "cell"}
        is_name = all(part.isidentifier() for part in self.target.split("."))
        is_missing = not self.target or self.target.startswith("-")
        problems = (
            (self.kind == "cell" and not self.code.strip(), "the cell holds no code"),
            (self.kind != "cell" and is_missing, f"the {self.kind} to run is missing"),
            (self.kind == "module" and not is_name, f"{self.target!r} is not a valid module name"),
            (
                self.parameters and not is_notebook,
                "a script takes arguments after its name, not parameters",
            ),
            (self.arguments and is_notebook, "a notebook takes parameters, not arguments"),
            (self.kernel and self.kind != "notebook", "only a notebook has a kernel"),
            (
                (self.nodes_min or 0) > self.nodes,
                "the smallest number of nodes is larger than the largest",
            ),
            (
                self.elastic and self.launcher != "torchrun",
                f"the launcher {self.launcher} does not support elastic launches; use torchrun",
            ),
        )
        for applies, problem in problems:
            if applies:
                raise ValueError(problem)
        if self.layout:
            self._check_layout()
        return self

    def _check_layout(self) -> None:
        from ...diagnosis.roles import check_size, parse_layout  # noqa: PLC0415 - numpy is slow to import
        from ...telemetry.sample import SourceError  # noqa: PLC0415

        try:
            sizes = parse_layout(self.layout)
            if not self.elastic:
                check_size(sizes, self.ranks)
        except SourceError as error:
            raise ValueError(str(error).rstrip(".")) from error

    @property
    def elastic(self) -> bool:
        """Return whether the launch may run on fewer nodes than ``nodes``."""
        return self.nodes_min is not None and self.nodes_min < self.nodes

    @property
    def ranks(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def title(self) -> str:
        """Return a title for lists: the program and its arguments."""
        if self.kind == "cell":
            return self.name
        # A rerun has the absolute path of its program, which is too long for a list.
        program = self.target.rpartition("/")[2] if self.target.startswith("/") else self.target
        return redact_command_line((program, *self.arguments))[:120]


class LaunchPlan(Frozen):
    """Content of ``plan.json``.

    ``host_folder``, ``edf``, ``vetting`` and sources of mounts are host paths, all others as the ranks see
    them. ``target``, ``directory`` and ``checkpoint`` are absolute. ``python`` is the interpreter of ranks
    without a container, empty for Gipfel's own. ``edf`` is empty if ranks use the job's EDF or no container.
    ``request`` is the new job of the launch, None if it runs in the current job.
    """

    spec: LaunchSpec
    folder: str
    host_folder: str
    target: str
    directory: str
    checkpoint: str = ""
    python: str = ""
    edf: str = ""
    engine: str = ""
    runtime: str = ""
    scheduler: str = ""
    cluster: str = "local"
    vetting: str = ""
    """Name of a shipped protocol, else the path on the host of a copy in the launch's directory."""
    mounts: tuple[Mount, ...] = ()
    gates: Gates | None = None
    """All gates that apply: those of the launch, its EDF and the site."""
    by_srun: bool = True
    """True if the launcher runs in a Slurm step; else its processes run on this machine."""
    request: JobRequest | None = None

    @classmethod
    def load(cls, folder: Path) -> "LaunchPlan":
        """Read the plan of a launch's directory.

        Raises
        ------
        GipfelError
            The directory has no plan that this version can read.
        """
        try:
            return cls.model_validate_json(read_regular(folder / PLAN, MAX_BYTES))
        except (OSError, ValueError) as error:
            raise GipfelError(
                f"The launch in {folder} has no plan that this version of Gipfel can read.",
                "Start a new launch.",
            ) from error


def nodes_range(text: str) -> tuple[int, int | None]:
    """Parse ``N`` to (N, None) and ``MIN:MAX`` to (MAX, MIN).

    Raises
    ------
    ValueError
        The text is not a valid number or range.
    """
    found = _RANGE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a valid number of nodes; give N or MIN:MAX")
    if found[2] is None:
        return int(found[1]), None
    return int(found[2]), int(found[1])


def parameter_value(text: str) -> JsonValue:
    """Return the value of a text: parsed as JSON or as a Python constant, else the text itself."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return value


def cell_notebook(spec: LaunchSpec) -> dict[str, object]:
    """Return a notebook with the code of a cell launch, and with a cell for its parameters."""
    cells: list[tuple[str, list[str], str]] = [("launched", [], spec.code)]
    if spec.parameters:
        names = "".join(f"{name} = None\n" for name in spec.parameters)
        cells.insert(0, ("parameters", ["parameters"], names))
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "cells": [
            {
                "cell_type": "code",
                "id": name,
                "metadata": {"tags": tags},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for name, tags, source in cells
        ],
    }


def mounts_of(paths: tuple[Path, ...], context: SubmissionContext) -> tuple[Mount, ...]:
    """Return the mounts by which containers of ranks have these paths of the user, under the same names.

    System directories, and paths below an earlier one, are left out.

    Raises
    ------
    GipfelError
        The host can't access one of the directories.
    """
    found: dict[Path, Mount] = {}
    for path in paths:
        if is_system_directory(path) or any(path.is_relative_to(each) for each in found):
            continue
        found[path] = Mount(source=str(context.on_host(path)), destination=str(path))
    return tuple(found.values())
