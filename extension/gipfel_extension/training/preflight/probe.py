"""Asking the launch's container what it has: one short task in it, on this node."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.steps import IMAGE_PYTHON, StepSpec, start_step
from gipfel_cluster.steps.setting import setting_of_host

from ...telemetry.files import read_tail
from ..launchers import launcher_of
from ..launches.attempt import PROBE_FILE
from ..launches.plan import LaunchPlan

_LIMIT_S = 60.0
_MOST_LOG_BYTES = 16 << 20


class Room(Frozen):
    """Whether a folder can be written to, and its free bytes."""

    problem: str = ""
    free: int = 0


class ProbeAnswer(Frozen, extra="ignore"):
    """What the container has.

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


def ask_container(
    plan: LaunchPlan, folder: Path, environment: Mapping[str, str]
) -> tuple[ProbeAnswer | None, str]:
    """Run the probe; its answer, or why there is none."""
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
    # What an earlier question was answered is no answer to this one.
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
