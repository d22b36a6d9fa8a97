"""Nodes excluded from a job because they were not fit: a list in the run folder.

The scheduler keeps them in the job, and they are recorded; no step, launch or vetting begins on them.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from ..model import GipfelError
from ..regular_files import read_regular
from ..runs import write_atomically
from .notation import expand_hostlist, fold_hostlist

#: In the run folder, a node a line.
EXCLUDED_NODES = "excluded_nodes.txt"

_MOST_BYTES = 32 << 20
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_NUMBERS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
#: Of each node in the list's order, as ``8(x3),4``.
_PER_NODE = ("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?")


def exclude_nodes(run: Path, nodes: Iterable[str]) -> None:
    """Write which nodes are excluded from a job, in place of the earlier list.

    Raises
    ------
    GipfelError
        It can't be written.
    """
    lines = "".join(f"{node}\n" for node in nodes)
    try:
        if lines:
            write_atomically(run / EXCLUDED_NODES, lines)
        else:
            (run / EXCLUDED_NODES).unlink(missing_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The list of excluded nodes can't be written to {run}: {error.strerror}.", "Free some space."
        ) from error


def excluded_nodes(run: str) -> frozenset[str]:
    """Return the nodes excluded from the job of a run folder; none where the folder is not named.

    Raises
    ------
    GipfelError
        The list can't be read: without it bad nodes would be used.
    """
    if not run:
        return frozenset()
    try:
        return frozenset(
            read_regular(Path(run, EXCLUDED_NODES), _MOST_BYTES).decode(errors="replace").split()
        )
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise GipfelError(f"{run}/{EXCLUDED_NODES} can't be read: {error.strerror}.") from error


def remaining_variables(environment: Mapping[str, str], without: Iterable[str]) -> dict[str, str]:
    """Return Slurm's variables that count or name nodes, for the nodes that remain; unset ones stay unset.

    Raises
    ------
    ValueError
        Slurm's list of nodes is not valid.
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
    """Parse ``8(x2),4`` into a number for each node; empty where it is not such a list."""
    parts = [_COUNT.fullmatch(part) for part in counts.split(",")]
    return [part[1] for part in parts if part for _ in range(int(part[2] or 1))] if all(parts) else []


def _together(counts: Iterable[str]) -> str:
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(count if times == 1 else f"{count}(x{times})" for count, times in runs)
