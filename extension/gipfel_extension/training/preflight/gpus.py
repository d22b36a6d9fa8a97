"""Free GPUs for a launch: the check, the processes that hold them, and ending those that may be ended.

Only processes of the same user and the same job or notebook server are ended, each by a handle of its own.
"""

import os
import re
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gipfel_cluster.model import GipfelError, counted
from gipfel_cluster.process.tree import Process

from ..launches.allocation import choose_gpus, granted_gpus, held_gpus, running_beside
from .context import CheckOutcome, Context, Holder, ProbeAnswer, ask_container

#: Seconds that a process has to end after SIGTERM; what holds much memory of a GPU takes its time.
END_S = 30.0
_PROC = Path("/proc")
_LARGEST = 1 << 20
_MOST_PARENTS = 64
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
#: The first that both have decides whether two processes are of one job.
_OF_ONE_JOB = ("SLURM_JOB_ID", "GIPFEL_RUN", "JPY_PARENT_PID")
_NAMED = 4


class GpuCheck:
    """Check that this job has free GPUs for a launch."""

    name = "gpus"

    def run(self, context: Context) -> CheckOutcome | None:
        """Look at other launches, and at what nvidia-smi shows of this node."""
        spec = context.plan.spec
        if spec.where == "job":
            return None
        granted = granted_gpus(context.environment)
        if not granted:
            run = "runs" if spec.gpus_per_node == 1 else "run"
            words = f"The job has no GPUs: {counted(spec.gpus_per_node, 'rank')} a node {run} on its CPUs."
            return CheckOutcome(check=self.name, verdict="pass", message=words)
        job = context.environment.get("SLURM_JOB_ID") or context.environment.get("GIPFEL_JOB_ID") or ""
        node = context.environment.get("GIPFEL_NODE") or os.uname().nodename
        try:
            chosen = choose_gpus([node], spec.gpus_per_node, granted, held_gpus(context.folder, job))
        except GipfelError as error:
            others = ", ".join(f"#{each.number} {each.name}" for each in running_beside(context.folder, job))
            more = f" Launches that run: {others}." if others else ""
            return CheckOutcome(check=self.name, verdict="fail", message=error.problem + more, fix=error.fix)
        return self._busy(context, chosen[node]) or CheckOutcome(
            check=self.name,
            verdict="pass",
            message=f"{len(chosen[node])} of the job's {granted} GPUs on each node are taken, all free.",
        )

    def _busy(self, context: Context, positions: tuple[int, ...]) -> CheckOutcome | None:
        rows = context.probe.gpus if context.probe else ()
        visible = [each for each in context.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        wanted = {visible[each] for each in positions if each < len(visible)}
        chosen = {
            row[2]: row[3] for row in rows if row[:1] == ("gpu",) and len(row) > 3 and wanted & set(row[1:3])
        }
        busy = [row for row in rows if row[:1] == ("process",) and len(row) > 2 and row[2] in chosen]
        if not busy or context.probe is None:
            return None
        exclusive = any("exclusive" in chosen[row[2]].lower() for row in busy)
        holders = holders_of(busy, context.probe, context.environment)
        who = ", ".join(str(each) for each in holders[:_NAMED]) or "processes that can't be identified"
        return CheckOutcome(
            check=self.name,
            verdict="fail" if exclusive else "warn",
            message=f"GPUs of this launch are used by {who}{', which excludes others' if exclusive else ''}.",
            fix=_advice(holders),
            holders=holders,
        )


def free_gpus(context: Context, on_outcome: Callable[[CheckOutcome], None]) -> Context:
    """End those that hold GPUs of the launch and may be ended, and look again.

    Parameters
    ----------
    on_outcome
        Is called with their names before anything is ended.
    """
    found = GpuCheck().run(context)
    held_gpus = [each for each in found.holders if not each.kept] if found else []
    if not held_gpus:
        return context
    who = ", ".join(str(each) for each in held_gpus)
    on_outcome(
        CheckOutcome(check="gpus", verdict="warn", message=f"To free GPUs of this launch, ends {who}.")
    )
    left = end_holders(held_gpus)
    if left:
        still = ", ".join(str(each) for each in left)
        words, fix = f"{still} did not end within {END_S:g} s.", "To end it at once: kill -KILL PID."
        on_outcome(CheckOutcome(check="gpus", verdict="warn", message=words, fix=fix))
    probe, problem = ask_container(context.plan, context.folder, context.environment)
    return replace(context, probe=probe, probe_problem=problem)


def holders_of(
    rows: Sequence[Sequence[str]], probe: ProbeAnswer, environment: Mapping[str, str]
) -> tuple[Holder, ...]:
    """Return the processes of a probe's rows, each once; `environment` is the caller's."""
    names = {int(row[1]): str(row[-1]) for row in rows if _NUMBER.fullmatch(row[1])}
    return tuple(_holder(pid, name, probe, environment) for pid, name in names.items())


def end_holders(holders: Sequence[Holder], limit_s: float = END_S) -> tuple[Holder, ...]:
    """Ask those that may be ended to end (SIGTERM), wait, and return those of them that have not.

    A process that has taken over the number of one that is gone is left alone.
    """
    asked: dict[int, Holder] = {}
    left = []
    try:
        for holder in holders:
            if holder.kept or holder.process is None:
                continue
            try:
                handle = os.pidfd_open(holder.pid)
                asked[handle] = holder
                # The handle refers to one process: what its number shows now belongs to it.
                if holder.process.alive and _is_ours(holder.pid):
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            except ProcessLookupError:
                continue
            except OSError:
                left.append(holder)
        return (*left, *_waited_for({fd: each for fd, each in asked.items() if each not in left}, limit_s))
    finally:
        for handle in asked:
            os.close(handle)


def space_here() -> str:
    """Return the machine, boot and namespace in which process numbers are those of this process."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _waited_for(asked: Mapping[int, Holder], limit_s: float) -> tuple[Holder, ...]:
    """Return the holders whose process still runs after a while."""
    poll = select.poll()
    waiting = {handle: holder for handle, holder in asked.items() if holder.process and holder.process.alive}
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    end = time.monotonic() + limit_s
    while waiting and (remaining := end - time.monotonic()) > 0:
        for handle, _ in poll.poll(1000 * remaining):
            poll.unregister(handle)
            del waiting[handle]
    return tuple(waiting.values())


def _holder(pid: int, name: str, probe: ProbeAnswer, environment: Mapping[str, str]) -> Holder:
    process = Process.of(pid) if probe.space and probe.space == space_here() else None
    if process is None or str(process.start) != probe.starts.get(str(pid)):
        return Holder(pid=pid, name=name, kept="it can't be seen from here")
    variables = _variables(pid)
    session = variables.get("JPY_SESSION_NAME", "").encode(errors="replace").decode()[-200:]
    name = f"the kernel of {session}" if session else name
    own = pid == os.getpid()
    kept = "it is this process" if own else _kept(pid, variables, environment)
    return Holder(pid=pid, name=name, process=process, kept=kept, own=own)


def _kept(pid: int, variables: Mapping[str, str], environment: Mapping[str, str]) -> str:
    if not _is_ours(pid):
        return "it is another user's"
    if pid in _parents():
        return "it has started this one"
    if "GIPFEL_LAUNCH" in variables:
        return "it is a rank of a launch, which `gipfel launch stop` ends"
    return "" if _is_of_this_job(pid, variables, environment) else "it is not known to be of this job"


def _is_ours(pid: int) -> bool:
    try:
        return (_PROC / str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_of_this_job(pid: int, variables: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    for name in _OF_ONE_JOB:
        if environment.get(name) and variables.get(name):
            return environment[name] == variables[name]
    job = environment.get("SLURM_JOB_ID", "")
    if variables or not job:
        return False
    # The variables of a process in another container can't be read, its control group can.
    try:
        groups = (_PROC / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(f"job_{job}" in line.split("/") for line in groups.splitlines())


def _variables(pid: int) -> dict[str, str]:
    try:
        with (_PROC / str(pid) / "environ").open("rb") as file:
            pairs = (each.partition("=") for each in os.fsdecode(file.read(_LARGEST)).split("\0"))
            return {name: value for name, _, value in pairs if name}
    except OSError:
        return {}


def _parents() -> frozenset[int]:
    """Return the process numbers of this process's ancestors."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 0 and len(found) < _MOST_PARENTS:
        found.append(pid)
        try:
            pid = int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return frozenset(found)


def _advice(holders: tuple[Holder, ...]) -> str:
    """Return how to free the GPUs, for each kind of holder."""
    words = []
    freed = [f"pid {each.pid}" for each in holders if not each.kept]
    if freed:
        words.append(
            f"`--kill-holders`, or Stop these processes in the form, ends {', '.join(freed[:_NAMED])}."
        )
    if any(each.own for each in holders):
        words.append("What this kernel holds is free once it is restarted: Kernel > Restart Kernel.")
    others = [f"pid {each.pid}: {each.kept}" for each in holders if each.kept and not each.own]
    if others:
        words.append(f"Not ended from here is {', '.join(others[:_NAMED])}.")
        words.append("Of a kernel of yours, choose Kernel > Shut Down Kernel; any other process: kill PID.")
    return " ".join(words)
