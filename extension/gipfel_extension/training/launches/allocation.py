"""Allocation of a launch: nodes that pass its vetting, GPUs that no other launch holds, and requeueing."""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gipfel_cluster.edf import load_edf
from gipfel_cluster.job.staging import stage_request
from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.process.tree import end_child
from gipfel_cluster.regular_files import last_line
from gipfel_cluster.scheduler.notation import expand_hostlist, fold_hostlist
from gipfel_cluster.steps import StepJob
from gipfel_cluster.workloads.directory import is_supervised

from ...telemetry.files import open_log, read_object
from ..record import LaunchState, known_folders, refresh_state
from ..record.spec import LaunchPlan, LaunchSpec

if TYPE_CHECKING:
    from ...data.stage.model import TransferState

VETTING_REPORT, VETTING_LOG, VETTING_PROTOCOL = "vetting.json", "vetting.log", "vetting.yaml"
_LOOK_S = 0.5
_END_S = 30.0
_REQUEUE_S = 30.0
_LOCK = ".lock"
#: A launch whose state was updated within this time counts as alive.
_SILENT_NS = 60 * 10**9


def vetted_nodes(
    plan: LaunchPlan, setting: StepJob, environment: Mapping[str, str], stopped: Callable[[], bool]
) -> tuple[str, ...]:
    """Return the nodes that passed vetting, in Slurm's order; without vetting, all nodes of the job.

    Nodes that the spec excludes are left out.

    Raises
    ------
    GipfelError
        Too few nodes passed, or the vetting could not be run.
    """
    spec = plan.spec
    excluded = set(expand_hostlist(spec.exclude)) if spec.exclude else set()
    nodes = tuple(node for node in setting.nodes if node not in excluded)
    if not spec.vetting:
        return nodes
    from ...vetting.report import MAX_REPORT_BYTES  # noqa: PLC0415 - most launches do not need it

    folder = Path(plan.host_folder)
    least = spec.nodes_min or spec.nodes
    argv = [
        *(sys.executable, "-I", "-m", "gipfel_extension.cli", "vet", plan.vetting or spec.vetting),
        *("--action", "shrink", f"--min-nodes={least}", f"--json={folder / VETTING_REPORT}"),
    ]
    variables = {**environment, "GIPFEL_EDF": setting.edf, "GIPFEL_RUN": setting.run or str(folder)}
    status = _run(argv, variables, folder, stopped)
    found = read_object(folder / VETTING_REPORT, MAX_REPORT_BYTES)
    listed = found.get("nodes")
    good = {
        str(each.get("node"))
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and each.get("vetted") is True
    }
    if status or len(good) < least:
        why = found.get("outcome") or last_line(folder / VETTING_LOG) or f"exit status {status}"
        fix = (
            "Exclude the bad nodes with --exclude"
            if found.get("exclude")
            else "It has the cause. No single node is faulty, so excluding nodes does not help"
        )
        raise GipfelError(
            f"The nodes did not pass the vetting by {spec.vetting}: {one_line(str(why))[:400]}",
            f"See {folder / VETTING_REPORT}. {fix}.",
        )
    return tuple(node for node in nodes if node in good)


def stage_for_launch(
    plan: LaunchPlan,
    setting: StepJob,
    nodes: tuple[str, ...],
    environment: Mapping[str, str],
    report: Callable[[str], bool],
) -> None:
    """Copy the data that the launch and its EDF request to the nodes, before the ranks start.

    The copies stay until the job ends, for the next launch.

    Parameters
    ----------
    report
        Called with the progress as a sentence; returns whether to stop waiting.

    Raises
    ------
    GipfelError
        The data could not be staged, and the request says that the launch must then stop.
    """
    annotations: Mapping[str, str] = {}
    if setting.edf:
        annotations = load_edf(setting.edf, environment=environment, directory=Path(setting.home)).annotations
    request = stage_request(annotations, plan.spec.stage)
    if request is None:
        return
    from ...data.stage.model import TRANSFERS, StageSpec  # noqa: PLC0415 - most launches do not need it
    from ...data.stage.transfer import start_staging, wait_until_staged  # noqa: PLC0415

    spec = StageSpec(data=request.data, to=request.to, nodes=nodes, on_failure=request.on_failure)
    # Without the broker's sockets, this process starts the steps, even if the request came from a container.
    variables = {name: value for name, value in environment.items() if name != "GIPFEL_SOCKETS"}
    folder = start_staging(spec, variables, Path(plan.host_folder).parents[1] / TRANSFERS)
    stopped = False

    def show(state: "TransferState") -> None:
        nonlocal stopped
        stopped = report(f"Data is staged: {state.reason or state.phase}")

    state = wait_until_staged(folder, show, lambda: stopped)
    if state.ended and request.on_failure == "stop":
        raise GipfelError(f"The data could not be staged: {state.reason}", "Start without --stage.")
    report(f"Not staged, so the shared files are read: {state.reason}" if state.ended else "")


def excluded_nodes(spec: LaunchSpec, cluster: str, environment: Mapping[str, str]) -> str:
    """Return the nodes that a launch's job excludes, as a hostlist.

    These are the nodes in the spec and, with vetting, nodes that failed recently. A list of failed nodes that
    can't be read is ignored.
    """
    if not spec.vetting:
        return spec.exclude
    from ...vetting.history.queries import Exclusions  # noqa: PLC0415 - most launches do not need it
    from ...vetting.history.store import History, history_root  # noqa: PLC0415

    try:
        known, _ = Exclusions(History(history_root(environment), cluster).folder).read()
        requested = expand_hostlist(spec.exclude) if spec.exclude else ()
    except (GipfelError, OSError, ValueError):
        return spec.exclude
    return fold_hostlist({*requested, *(each.node for each in known)})


def choose_gpus(
    nodes: Sequence[str], count: int, granted: int, taken: Mapping[str, set[int]]
) -> dict[str, tuple[int, ...]]:
    """Return the indexes of free GPUs on each node; empty if the job has no GPUs (ranks run on CPUs).

    Raises
    ------
    GipfelError
        A node has too few free GPUs.
    """
    if not granted:
        return {}
    chosen = {}
    for node in nodes:
        free = [each for each in range(granted) if each not in taken.get(node, set())]
        if len(free) < count:
            raise GipfelError(
                f"The launch requests {count} GPUs on {node}, but only {len(free)} of the job's {granted} "
                "are free.",
                "Request fewer GPUs, stop another launch, or run the launch in a new job (--new-job).",
            )
        chosen[node] = tuple(free[:count])
    return chosen


def granted_gpus(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs of the job on this node."""
    return len([each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each])


def held_gpus(folder: Path, job_id: str) -> dict[str, set[int]]:
    """Return the GPUs that other launches of a job hold: indexes among the job's GPUs, by node."""
    found: dict[str, set[int]] = {}
    for state in other_running_launches(folder, job_id):
        for node, indexes in state.gpus.items():
            found.setdefault(node, set()).update(indexes)
    return found


def other_running_launches(folder: Path, job_id: str) -> tuple[LaunchState, ...]:
    """Return the other launches of a job that hold GPUs and have a live supervisor."""
    try:
        others = [
            each for each in folder.parent.iterdir() if each.name.isdecimal() and each.name != folder.name
        ]
    except OSError:
        return ()
    return tuple(state for state in _alive(others) if state.gpus and state.job_id == job_id)


def launches_in_job(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the launches that run in this process's job."""
    states = _alive(known_folders(environment)) if environment.get("GIPFEL_RUN") else ()
    return tuple(state.name for state in states if state.phase in {"running", "vetting"} and state.in_job)


@contextmanager
def allocation_lock(folder: Path) -> Iterator[None]:
    """Hold the lock under which launches of a job choose their GPUs."""
    lock = os.open(folder.parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # On a file system without locks, launches may choose the same GPUs; they start nevertheless.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def requeue(job: str, environment: Mapping[str, str]) -> bool:
    """Requeue the job, which also ends this process; return whether Slurm accepted the request.

    Slurm may end ``scontrol`` with the job before it gets a response.
    """
    try:
        done = subprocess.run(
            ("scontrol", "requeue", job),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_REQUEUE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode <= 0


def _run(argv: list[str], environment: Mapping[str, str], folder: Path, stopped: Callable[[], bool]) -> int:
    (folder / VETTING_REPORT).unlink(missing_ok=True)
    log = open_log(folder / VETTING_LOG)
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    finally:
        os.close(log)
    while (status := process.poll()) is None:
        if stopped():
            end_child(process, _END_S)
            return process.wait()
        time.sleep(_LOOK_S)
    return status


def _alive(folders: Iterable[Path]) -> Iterator[LaunchState]:
    """Yield the launches that have not ended and whose supervisor is, or may be, alive."""
    for folder in folders:
        with contextlib.suppress(GipfelError):
            state = refresh_state(folder)
            # A PID in another namespace can't be checked.
            recent = time.time_ns() - state.updated_ns < _SILENT_NS
            possible = recent or state.supervisor is None or state.supervisor.alive
            if not state.ended and (is_supervised(folder) or possible):
                yield state
