"""Context and outcomes of pre-flight checks, and the probe that asks the launch's container once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.process.tree import Process
from gipfel_cluster.steps import IMAGE_PYTHON, StepSpec, start_step
from gipfel_cluster.steps.container import setting_of_host
from gipfel_cluster.workloads.submission import SubmissionContext

from ...telemetry.files import read_tail
from ..launches.attempt import PROBE_FILE
from ..launches.launchers import launcher_of
from ..record.spec import LaunchPlan

_LIMIT_S = 60.0
_MOST_LOG_BYTES = 16 << 20


class Room(Frozen):
    """Room of a directory: why it can't be written to, and its free bytes."""

    problem: str = ""
    free: int = 0


class ProbeAnswer(Frozen, extra="ignore"):
    """Answer of the container to the probe.

    ``engine`` is what it was entered with, ``host`` where the EDF has no image; ``gpus`` are rows of
    nvidia-smi; ``starts`` are the clock ticks at which their processes began, by number, and ``space`` is
    where these numbers mean something.
    """

    python: str
    executable: str = ""
    engine: str = ""
    packages: dict[str, str | None] = Field(default={})
    target: bool = False
    checkpoint: Room | None = None
    gpus: tuple[tuple[str, ...], ...] = ()
    starts: dict[str, str] = Field(default={})
    space: str = ""


class Holder(Frozen):
    """A process on a GPU.

    ``process`` is its identity, None where it can't be seen from here; ``kept`` why it is not ended from
    here, empty where it may be; ``own`` whether it is the process that asks.
    """

    pid: int
    name: str
    process: Process | None = None
    kept: str = ""
    own: bool = False

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})"


def ask_container(
    plan: LaunchPlan, folder: Path, environment: Mapping[str, str]
) -> tuple[ProbeAnswer | None, str]:
    """Run the probe and return its answer, or why there is none."""
    packages = {"torch", *launcher_of(plan.spec.launcher).needs}
    if plan.spec.kind in {"notebook", "cell"}:
        packages.add("ipykernel")
    question: dict[str, Any] = {
        "kind": plan.spec.kind,
        "target": plan.target,
        "packages": sorted(packages),
        "checkpoint": plan.checkpoint,
    }
    in_job = "GIPFEL_RUN" in environment or "SLURM_JOB_ID" in environment
    here = environment.get("GIPFEL_NODE") or environment.get("SLURMD_NODENAME") or ""
    log = folder / "probe" / "node-0.log"
    # The answer to an earlier question must not be taken for this one's.
    log.unlink(missing_ok=True)
    spec = StepSpec(
        command=(IMAGE_PYTHON, f"{plan.folder}/{PROBE_FILE}", json.dumps(question)),
        edf=plan.edf,
        python=plan.python,
        nodes=(here,) if in_job and here else (),
        folder=str(log.parent),
        directory=plan.directory,
        name="probe",
        time_limit_s=_LIMIT_S,
    )
    try:
        setting = None
        if not in_job:
            setting = setting_of_host(environment).model_copy(update={"engine": plan.engine})
        with start_step(spec, environment, setting=setting, mounts=plan.mounts) as step:
            status = step.wait(_LIMIT_S + 30)
            problem = step.state.problem
    except GipfelError as error:
        return None, str(error)
    lines = _lines(log)
    for line in reversed(lines):
        try:
            return ProbeAnswer.model_validate_json(line), ""
        except ValidationError:
            continue
    said = problem or next((line for line in reversed(lines) if line.strip()), "")
    return None, said or f"The container ended with status {status}."


def _lines(log: Path) -> list[str]:
    try:
        return read_tail(log, _MOST_LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


class CheckOutcome(Frozen):
    """Outcome of a check: one sentence, and what to do; ``fail`` keeps the launch from starting.

    ``holders`` are the processes on the launch's GPUs, for callers that may end them; no file holds them.
    """

    check: str
    verdict: Literal["pass", "warn", "fail", "unknown"]
    message: str
    fix: str = ""
    holders: tuple[Holder, ...] = Field((), exclude=True)

    @property
    def line(self) -> str:
        """Return it as one line of a terminal."""
        mark = {"pass": "ok", "warn": "note", "fail": "FAILED", "unknown": "?"}[self.verdict]
        fix = f" {self.fix}" if self.fix and self.verdict != "pass" else ""
        return f"{mark:6} {self.check}: {self.message}{fix}"


@dataclass(frozen=True)
class Context:
    """Input of the checks; ``probe`` is the container's answer, None if it could not be asked."""

    plan: LaunchPlan
    folder: Path
    here: SubmissionContext
    environment: Mapping[str, str]
    probe: ProbeAnswer | None
    probe_problem: str = ""

    @property
    def contained(self) -> bool:
        """Return whether the ranks run in a container: an EDF without an image enters none."""
        if self.probe is not None and self.probe.engine:
            return self.probe.engine != "host"
        return self.here.inside or bool(self.plan.edf or self.environment.get("GIPFEL_EDF"))


class Check(Protocol):
    """A check for one problem that would make a launch fail."""

    name: str

    def run(self, context: Context) -> CheckOutcome | None:
        """Return the outcome; None if the check does not apply."""
