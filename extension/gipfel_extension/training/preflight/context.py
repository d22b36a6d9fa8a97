"""Context and outcomes of pre-flight checks, and the probe that runs once in the launch's container."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.process.tree import Process
from gipfel_cluster.regular_files import read_tail_lines
from gipfel_cluster.steps import IMAGE_PYTHON, StepSpec, start_step
from gipfel_cluster.steps.container import step_job_from_environment
from gipfel_cluster.workloads.submission import SubmissionContext

from ..launches.attempt import PROBE_FILE
from ..launches.launchers import LAUNCHERS
from ..record.spec import LaunchPlan

_LIMIT_S = 60.0
_MAX_LOG_BYTES = 16 << 20


class FreeSpace(Frozen):
    """Free space of a directory in bytes; ``problem`` is the reason why it can't be written to."""

    problem: str = ""
    free: int = 0


class ProbeResult(Frozen, extra="ignore"):
    """Result of the probe in the container.

    ``engine`` is the container engine, ``host`` without an image. ``gpus`` are rows of nvidia-smi.
    ``start_ticks`` are the start times of processes on GPUs in clock ticks, by PID, and ``pid_namespace``
    identifies the namespace of these PIDs.
    """

    python: str
    executable: str = ""
    engine: str = ""
    packages: dict[str, str | None] = Field(default={})
    target: bool = False
    checkpoint: FreeSpace | None = None
    gpus: tuple[tuple[str, ...], ...] = ()
    start_ticks: dict[str, str] = Field(default={})
    pid_namespace: str = ""


class Holder(Frozen):
    """A process that holds a GPU.

    ``process`` is its identity, None if it is not visible from this process. ``protection_reason`` says
    why Gipfel does not terminate it, empty if it may. ``is_caller`` is true for the current process.
    """

    pid: int
    name: str
    process: Process | None = None
    protection_reason: str = ""
    is_caller: bool = False

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})"


def run_probe(
    plan: LaunchPlan, folder: Path, environment: Mapping[str, str]
) -> tuple[ProbeResult | None, str]:
    """Run the probe and return its result, or None and the reason."""
    packages = {"torch", *LAUNCHERS[plan.spec.launcher].needs}
    if plan.spec.kind in {"notebook", "cell"}:
        packages.add("ipykernel")
    question: dict[str, Any] = {
        "kind": plan.spec.kind,
        "target": plan.target,
        "packages": sorted(packages),
        "checkpoint": plan.checkpoint,
    }
    in_job = "GIPFEL_RUN" in environment or "SLURM_JOB_ID" in environment
    submission = environment.get("GIPFEL_NODE") or environment.get("SLURMD_NODENAME") or ""
    log = folder / "probe" / "node-0.log"
    # The log must not have the result of an earlier probe.
    log.unlink(missing_ok=True)
    spec = StepSpec(
        command=(IMAGE_PYTHON, f"{plan.folder}/{PROBE_FILE}", json.dumps(question)),
        edf=plan.edf,
        python=plan.python,
        nodes=(submission,) if in_job and submission else (),
        folder=str(log.parent),
        directory=plan.directory,
        name="probe",
        time_limit_s=_LIMIT_S,
    )
    try:
        engine = {"engine": plan.engine}
        job = None if in_job else step_job_from_environment(environment).model_copy(update=engine)
        with start_step(spec, environment, job=job, mounts=plan.mounts) as step:
            status = step.wait(_LIMIT_S + 30)
            problem = step.state.problem
    except GipfelError as error:
        return None, str(error)
    lines = read_tail_lines(log, _MAX_LOG_BYTES)
    for line in reversed(lines):
        with suppress(ValidationError):
            return ProbeResult.model_validate_json(line), ""
    problem = problem or next((line for line in reversed(lines) if line.strip()), "")
    return None, problem or f"The container ended with status {status}."


class CheckOutcome(Frozen):
    """Outcome of a check: a sentence, and how to fix it; ``fail`` keeps the launch from starting.

    ``holders`` are the processes on the launch's GPUs, for callers that may terminate them. They are not
    written to files.
    """

    check: str
    verdict: Literal["pass", "warn", "fail", "unknown"]
    message: str
    fix: str = ""
    holders: tuple[Holder, ...] = Field((), exclude=True)

    @property
    def line(self) -> str:
        """Return the outcome as one line for a terminal."""
        mark = {"pass": "ok", "warn": "note", "fail": "FAILED", "unknown": "?"}[self.verdict]
        fix = f" {self.fix}" if self.fix and self.verdict != "pass" else ""
        return f"{mark:6} {self.check}: {self.message}{fix}"


@dataclass(frozen=True)
class Context:
    """Input of the checks; ``probe`` is None if the container could not be probed."""

    plan: LaunchPlan
    folder: Path
    submission: SubmissionContext
    environment: Mapping[str, str]
    probe: ProbeResult | None
    probe_problem: str = ""

    @property
    def contained(self) -> bool:
        """Return whether the ranks run in a container; an EDF without an image has none."""
        if self.probe is not None and self.probe.engine:
            return self.probe.engine != "host"
        return self.submission.in_container or bool(self.plan.edf or self.environment.get("GIPFEL_EDF"))
