"""Nodes of a job that its server goes on without, since they were not fit: a list in the run folder.

The scheduler keeps them in the job, and they are recorded; no step, launch or vetting begins on them.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from ..model import GipfelError
from ..regular_files import read_regular
from ..runs import write_atomically
from ..scheduler.hostlist import expand_hostlist, fold_hostlist

#: In the run folder, a node a line.
LEFT_OUT = "left_out_nodes.txt"

_MOST_BYTES = 32 << 20
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_NUMBERS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
#: Of each node in the list's order, as ``8(x3),4``.
_PER_NODE = ("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?")


def leave_out(run: Path, nodes: Iterable[str]) -> None:
    """Write which nodes a job goes on without, in the place of what was said before.

    Raises
    ------
    GipfelError
        It can't be written.
    """
    lines = "".join(f"{node}\n" for node in nodes)
    try:
        if lines:
            write_atomically(run / LEFT_OUT, lines)
        else:
            (run / LEFT_OUT).unlink(missing_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The nodes to go on without can't be written to {run}: {error.strerror}.", "Free some space."
        ) from error


def left_out(run: str) -> frozenset[str]:
    """The nodes that the job of a run folder goes on without; none where the folder is not named.

    Raises
    ------
    GipfelError
        The list can't be read: who went on without it would use bad nodes.
    """
    if not run:
        return frozenset()
    try:
        return frozenset(read_regular(Path(run, LEFT_OUT), _MOST_BYTES).decode(errors="replace").split())
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise GipfelError(f"{run}/{LEFT_OUT} can't be read: {error.strerror}.") from error


def remaining_variables(environment: Mapping[str, str], without: Iterable[str]) -> dict[str, str]:
    """Slurm's variables that count or name nodes, for the nodes that remain; those that are not set stay so.

    Raises
    ------
    ValueError
        Slurm's list of nodes is none.
    """
    without = frozenset(without)
    if not without:
        return {}
    nodes = expand_hostlist(environment.get("SLURM_JOB_NODELIST", ""))
    stay = [node not in without for node in nodes]
    kept = [node for node, stays in zip(nodes, stay, strict=True) if stays]
    if not kept or len(kept) == len(nodes):
        return {}
    folded = fold_hostlist(kept)
    if list(expand_hostlist(folded)) != kept:
        # The counts are in the list's order.
        folded = ",".join(kept)
    found = dict.fromkeys(_LISTS, folded) | dict.fromkeys(_NUMBERS, str(len(kept)))
    for name in _PER_NODE:
        counts = _each(environment.get(name, ""))
        if len(counts) == len(nodes):
            found[name] = _together(count for count, stays in zip(counts, stay, strict=True) if stays)
    return {name: value for name, value in found.items() if name in environment}


def _each(counts: str) -> list[str]:
    """``8(x2),4`` as a number for each node; empty where it is no such list."""
    parts = [_COUNT.fullmatch(part) for part in counts.split(",")]
    return [part[1] for part in parts if part for _ in range(int(part[2] or 1))] if all(parts) else []


def _together(counts: Iterable[str]) -> str:
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(count if times == 1 else f"{count}(x{times})" for count, times in runs)
