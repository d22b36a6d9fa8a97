"""Processes that hold GPUs of a launch: which of them may be ended from here, and ending exactly these."""

import os
import re
import select
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler.processes import Process

from .probe import ProbeAnswer

#: Seconds that a process has to end after SIGTERM; what holds much memory of a GPU takes its time.
END_S = 30.0
_PROC = Path("/proc")
_LARGEST = 1 << 20
_MOST_PARENTS = 64
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
#: The first that both have decides whether two processes are of one job.
_OF_ONE_JOB = ("SLURM_JOB_ID", "GIPFEL_RUN", "JPY_PARENT_PID")


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


def holders_of(
    rows: Sequence[Sequence[str]], probe: ProbeAnswer, environment: Mapping[str, str]
) -> tuple[Holder, ...]:
    """Who stands in the rows of processes that a probe has seen, each once; the variables are the asker's."""
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
                # The handle stands for one process: what is seen of its number now is seen of it.
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


def _waited_for(asked: Mapping[int, Holder], limit_s: float) -> tuple[Holder, ...]:
    """Those whose very process still runs after a while."""
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


def space_here() -> str:
    """Where a process's number means what it means to this process: machine, boot and namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


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
    """Numbers of what has started this process, up to the first."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 0 and len(found) < _MOST_PARENTS:
        found.append(pid)
        try:
            pid = int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return frozenset(found)
