"""Check that the GPUs of a launch are free, list the processes that use them, and terminate such processes.

Only processes of the same user and the same job or notebook server are terminated, through their pidfd.
"""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gipfel_cluster.model import GipfelError, pluralize
from gipfel_cluster.process.tree import Process, descendants

from ...telemetry.ranks import read_environment
from ..launches.allocation import choose_gpus, granted_gpus, held_gpus, other_running_launches
from .context import CheckOutcome, Context, Holder, ProbeResult, run_probe

#: Seconds until a process must have ended after SIGTERM; releasing much GPU memory takes time.
TERMINATION_TIMEOUT_S = 30.0
_PROC = Path("/proc")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
#: Two processes belong to the same job if the first of these variables that both have has the same value.
_JOB_VARIABLES = ("SLURM_JOB_ID", "GIPFEL_RUN", "JPY_PARENT_PID")
_MAX_LISTED = 4


def check_gpus(context: Context) -> CheckOutcome | None:
    """Check that this job has free GPUs for a launch.

    Check the GPUs that other launches hold, and the processes that nvidia-smi shows on this node.
    """
    spec = context.plan.spec
    if not spec.in_job:
        return None
    granted = granted_gpus(context.environment)
    if not granted:
        run = "runs" if spec.gpus_per_node == 1 else "run"
        return CheckOutcome(
            check="gpus",
            verdict="pass",
            message=(
                f"The job has no GPUs: {pluralize(spec.gpus_per_node, 'rank')} per node {run} on its CPUs."
            ),
        )
    job = context.environment.get("SLURM_JOB_ID") or context.environment.get("GIPFEL_JOB_ID") or ""
    node = context.environment.get("GIPFEL_NODE") or os.uname().nodename
    try:
        chosen = choose_gpus([node], spec.gpus_per_node, granted, held_gpus(context.folder, job))
    except GipfelError as error:
        others = ", ".join(
            f"#{each.number} {each.name}" for each in other_running_launches(context.folder, job)
        )
        more = f" Running launches: {others}." if others else ""
        return CheckOutcome(check="gpus", verdict="fail", message=error.problem + more, fix=error.fix)
    count = len(chosen[node])
    uses = f"The launch uses {pluralize(count, 'GPU')} of the job's {granted}"
    nodes = f" on each of {spec.nodes} nodes; only {node} is examined" if spec.nodes > 1 else ""
    listed = _listed_gpus(context, chosen[node])
    if listed is None:
        return CheckOutcome(
            check="gpus",
            verdict="unknown",
            message=f"{uses}{nodes}. It is unknown whether other processes use them.",
            fix="nvidia-smi did not list them there. Run it on the node, outside the container.",
        )
    return _busy(context, listed) or CheckOutcome(
        check="gpus", verdict="pass", message=f"{uses}{nodes}. nvidia-smi shows no process on them."
    )


def _busy(context: Context, compute_modes: Mapping[str, str]) -> CheckOutcome | None:
    """Return the outcome if processes use the chosen GPUs (compute modes by UUID), else None."""
    rows = context.probe.gpus if context.probe else ()
    busy = [row for row in rows if row[:1] == ("process",) and len(row) > 2 and row[2] in compute_modes]
    if not busy or context.probe is None:
        return None
    exclusive = any("exclusive" in compute_modes[row[2]].lower() for row in busy)
    holders = holders_of(busy, context.probe, context.environment)
    who = ", ".join(str(each) for each in holders[:_MAX_LISTED]) or "processes that can't be identified"
    mode = ", and their compute mode is exclusive" if exclusive else ""
    return CheckOutcome(
        check="gpus",
        verdict="fail" if exclusive else "warn",
        message=f"GPUs of this launch are used by {who}{mode}.",
        fix=_fix(holders),
        holders=holders,
    )


def _listed_gpus(context: Context, positions: Sequence[int]) -> dict[str, str] | None:
    """Return the compute modes of the job's GPUs at some positions, by UUID.

    None unless nvidia-smi lists each of them; it does not list MIG instances, for example.
    """
    rows = context.probe.gpus if context.probe else ()
    gpus = [row for row in rows if row[:1] == ("gpu",) and len(row) > 3]
    visible = [each for each in context.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    found: dict[str, str] = {}
    for name in (visible[each] for each in positions):
        # CUDA accepts an index, a UUID, or the beginning of a UUID that is unique.
        same = [
            row for row in gpus if row[1] == name or (name.startswith("GPU-") and row[2].startswith(name))
        ]
        if len(same) != 1:
            return None
        found[same[0][2]] = same[0][3]
    return found


def free_gpus(context: Context, on_outcome: Callable[[CheckOutcome], None]) -> Context:
    """Terminate processes that hold GPUs of the launch, unless protected, and probe the node again.

    Parameters
    ----------
    on_outcome
        Called with the names of the processes before they are terminated.
    """
    found = check_gpus(context)
    unprotected = [each for each in found.holders if not each.protection_reason] if found else []
    if not unprotected:
        return context
    who = ", ".join(str(each) for each in unprotected)
    on_outcome(CheckOutcome(check="gpus", verdict="warn", message=f"Terminating {who} to free GPUs."))
    left = terminate_holders(unprotected)
    if left:
        still = ", ".join(str(each) for each in left)
        message, fix = (
            f"{still} did not end within {TERMINATION_TIMEOUT_S:g} s.",
            "Kill the process: kill -KILL PID.",
        )
        on_outcome(CheckOutcome(check="gpus", verdict="warn", message=message, fix=fix))
    probe, problem = run_probe(context.plan, context.folder, context.environment)
    return replace(context, probe=probe, probe_problem=problem)


def holders_of(
    rows: Sequence[Sequence[str]], probe: ProbeResult, environment: Mapping[str, str]
) -> tuple[Holder, ...]:
    """Return the processes in the rows of a probe, each once; `environment` is that of the caller."""
    names = {int(row[1]): str(row[-1]) for row in rows if _NUMBER.fullmatch(row[1])}
    return tuple(_holder(pid, name, probe, environment) for pid, name in names.items())


def terminate_holders(
    holders: Sequence[Holder], limit_s: float = TERMINATION_TIMEOUT_S
) -> tuple[Holder, ...]:
    """Send SIGTERM to the holders that are not protected, wait, and return those that have not ended.

    A process that has reused the PID of a holder gets no signal.
    """
    signalled: dict[int, Holder] = {}
    left = []
    try:
        for holder in holders:
            if holder.protection_reason or holder.process is None:
                continue
            try:
                handle = os.pidfd_open(holder.pid)
                signalled[handle] = holder
                # The pidfd refers to one process, so the checks of this PID are about that process.
                if holder.process.alive and _is_own_user(holder.pid):
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            except ProcessLookupError:
                continue
            except OSError:
                left.append(holder)
        return (
            *left,
            *_wait_for_exit({fd: each for fd, each in signalled.items() if each not in left}, limit_s),
        )
    finally:
        for handle in signalled:
            os.close(handle)


def _pid_namespace() -> str:
    """Return an identifier of this boot and PID namespace, as `probe_program` does in the container."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _wait_for_exit(signalled: Mapping[int, Holder], limit_s: float) -> tuple[Holder, ...]:
    """Wait for the processes to end, and return the holders that are still running."""
    poll = select.poll()
    waiting = {
        handle: holder for handle, holder in signalled.items() if holder.process and holder.process.alive
    }
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    end = time.monotonic() + limit_s
    while waiting and (remaining := end - time.monotonic()) > 0:
        for handle, _ in poll.poll(1000 * remaining):
            poll.unregister(handle)
            del waiting[handle]
    return tuple(waiting.values())


def _holder(pid: int, name: str, probe: ProbeResult, environment: Mapping[str, str]) -> Holder:
    process = Process.of(pid) if probe.pid_namespace and probe.pid_namespace == _pid_namespace() else None
    if process is None or str(process.start) != probe.start_ticks.get(str(pid)):
        return Holder(pid=pid, name=name, protection_reason="it is not visible from this process")
    variables = _variables(pid)
    session = variables.get("JPY_SESSION_NAME", "").encode(errors="replace").decode()[-200:]
    name = f"the kernel of {session}" if session else name
    is_caller = pid == os.getpid()
    protection_reason = (
        "it is the current process" if is_caller else _protection_reason(pid, variables, environment)
    )
    return Holder(
        pid=pid, name=name, process=process, protection_reason=protection_reason, is_caller=is_caller
    )


def _protection_reason(pid: int, variables: Mapping[str, str], environment: Mapping[str, str]) -> str:
    reasons = (
        (not _is_own_user(pid), "it belongs to another user"),
        (os.getpid() in descendants(pid), "it is an ancestor of this process"),
        ("GIPFEL_LAUNCH" in variables, "it is a rank of a launch, which `gipfel launch stop` stops"),
        (not _is_in_job(pid, variables, environment), "it may not belong to this job"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _is_own_user(pid: int) -> bool:
    try:
        return (_PROC / str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_in_job(pid: int, variables: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    for name in _JOB_VARIABLES:
        if environment.get(name) and variables.get(name):
            return environment[name] == variables[name]
    job = environment.get("SLURM_JOB_ID", "")
    if variables or not job:
        return False
    # The variables of a process in another container can't be read, but its control group can.
    try:
        groups = (_PROC / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(f"job_{job}" in line.split("/") for line in groups.splitlines())


def _variables(pid: int) -> dict[str, str]:
    with suppress(OSError):
        found = read_environment(_PROC / str(pid))
        return {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}
    return {}


def _fix(holders: tuple[Holder, ...]) -> str:
    """Return instructions to free the GPUs, for each kind of holder."""
    sentences = []
    freed = [f"pid {each.pid}" for each in holders if not each.protection_reason]
    if freed:
        who = ", ".join(freed[:_MAX_LISTED])
        sentences.append(f"`--kill-holders`, or Stop these processes in the form, terminates {who}.")
    if any(each.is_caller for each in holders):
        sentences.append("To free the GPUs of this kernel, choose Kernel > Restart Kernel.")
    others = [
        f"pid {each.pid}: {each.protection_reason}"
        for each in holders
        if each.protection_reason and not each.is_caller
    ]
    if others:
        sentences.append(f"Not terminated by Gipfel: {', '.join(others[:_MAX_LISTED])}.")
        sentences.append("End a kernel with Kernel > Shut Down Kernel, and other processes with kill PID.")
    return " ".join(sentences)
