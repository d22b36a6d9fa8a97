"""Which GPUs of a job a launch gets: none that another launch of the job holds."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gipfel_cluster.model import GipfelError

from .folder import known_folders
from .lifeline import settled_state, supervised
from .state import LaunchState

_LOCK = ".lock"
_SILENT_NS = 60 * 10**9


def held(folder: Path, job_id: str) -> dict[str, set[int]]:
    """What other launches of a job hold beside this one: positions among the job's GPUs, by node."""
    found: dict[str, set[int]] = {}
    for state in running_beside(folder, job_id):
        for node, positions in state.gpus.items():
            found.setdefault(node, set()).update(positions)
    return found


def running_beside(folder: Path, job_id: str) -> tuple[LaunchState, ...]:
    """Launches of a job beside this one that hold GPUs and whose supervisor lives."""
    states = []
    with contextlib.suppress(OSError):
        for each in folder.parent.iterdir():
            if each.name.isdecimal() and each.name != folder.name:
                with contextlib.suppress(GipfelError):
                    state = settled_state(each)
                    if state.gpus and state.job_id == job_id and not state.ended and _lives(each, state):
                        states.append(state)
    return tuple(states)


def running_here(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the launches that run in this process's job, for whoever asks whether it is in use."""
    states = []
    for folder in known_folders(environment) if environment.get("GIPFEL_RUN") else ():
        with contextlib.suppress(GipfelError):
            state = settled_state(folder)
            if state.phase in {"running", "vetting"} and state.where == "here" and _lives(folder, state):
                states.append(state.name)
    return tuple(states)


def _lives(folder: Path, state: LaunchState) -> bool:
    """Whether a supervisor lives, or may: numbers of processes of another namespace say nothing here."""
    if supervised(folder):
        return True
    fresh = time.time_ns() - state.updated_ns < _SILENT_NS
    return state.supervisor is None or state.supervisor.alive or fresh


def choose(
    nodes: Sequence[str], count: int, granted: int, taken: Mapping[str, set[int]]
) -> dict[str, tuple[int, ...]]:
    """Positions of free GPUs on each node; nothing where the job has no GPUs, which means ranks on CPUs.

    Raises
    ------
    GipfelError
        There are not enough.
    """
    if not granted:
        return {}
    chosen = {}
    for node in nodes:
        free = [each for each in range(granted) if each not in taken.get(node, set())]
        if len(free) < count:
            raise GipfelError(
                f"{count} GPUs are asked for on {node}, and {len(free)} of the job's {granted} are free.",
                "Ask for fewer, stop another launch, or let it be a job of its own (--where job).",
            )
        chosen[node] = tuple(free[:count])
    return chosen


def granted_gpus(environment: Mapping[str, str]) -> int:
    """How many GPUs the job has on this node; 0 where it has none."""
    return len([each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each])


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep the launches beside this one from choosing meanwhile."""
    lock = os.open(folder.parent / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # A file system without locks costs the certainty, not the launch.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
