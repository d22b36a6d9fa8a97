"""A job's nodes that failed its vetting and that it must not use: a list in the run folder.

The nodes remain allocated to the job and are recorded, but no step, launch or vetting starts on them. The
list holds for this job alone, unlike an exclusion, which has a reason and an end.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from ..model import GipfelError, ReportOSError
from ..regular_files import read_regular
from ..runs import write_atomically
from .notation import expand_hostlist, fold_hostlist

#: File name in the run folder; one node per line.
EXCLUDED_NODES = "excluded_nodes.txt"

_MAX_BYTES = 32 << 20
_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_NODE_COUNTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
#: A number for each node in the order of the node list, such as ``8(x3),4``.
_PER_NODE = ("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?")


def exclude_nodes(run: Path, nodes: Iterable[str]) -> None:
    """Write the list of excluded nodes, which replaces an earlier list.

    Raises
    ------
    GipfelError
        The list can't be written.
    """
    lines = "".join(f"{node}\n" for node in nodes)
    with ReportOSError(f"The list of excluded nodes can't be written to {run}", "Free some space."):
        if lines:
            write_atomically(run / EXCLUDED_NODES, lines)
        else:
            (run / EXCLUDED_NODES).unlink(missing_ok=True)


def excluded_nodes(run: str) -> frozenset[str]:
    """Return the nodes excluded from the job of a run folder; none for an empty `run`.

    Raises
    ------
    GipfelError
        The list can't be read. Continuing without it would use bad nodes.
    """
    if not run:
        return frozenset()
    try:
        return frozenset(read_regular(Path(run, EXCLUDED_NODES), _MAX_BYTES).decode(errors="replace").split())
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise GipfelError(f"{run}/{EXCLUDED_NODES} can't be read: {error.strerror}.") from error


def remaining_variables(environment: Mapping[str, str], without: Iterable[str]) -> dict[str, str]:
    """Return Slurm's variables about nodes, changed to name only those that are not in `without`.

    Variables that are not set stay unset. Return an empty dictionary if nothing changes. It is empty, too, if
    no node remains, since Slurm's variables can't name none; callers never exclude all nodes of a job.

    Raises
    ------
    ValueError
        Slurm's list of nodes is not valid.
    """
    without = frozenset(without)
    if not without:
        return {}
    nodes = expand_hostlist(environment.get("SLURM_JOB_NODELIST", ""))
    remains = [node not in without for node in nodes]
    remaining = [node for node, keep in zip(nodes, remains, strict=True) if keep]
    if not remaining or len(remaining) == len(nodes):
        return {}
    folded = fold_hostlist(remaining)
    if list(expand_hostlist(folded)) != remaining:
        # Folding sorts, but the counts are in the order of the list.
        folded = ",".join(remaining)
    variables = dict.fromkeys(_LISTS, folded) | dict.fromkeys(_NODE_COUNTS, str(len(remaining)))
    for name in _PER_NODE:
        counts = _expand_counts(environment.get(name, ""))
        if len(counts) == len(nodes):
            variables[name] = _fold_counts(count for count, keep in zip(counts, remains, strict=True) if keep)
    return {name: value for name, value in variables.items() if name in environment}


def _expand_counts(counts: str) -> list[str]:
    """Parse ``8(x2),4`` into a number for each node; empty if the text has another form."""
    parts = [_COUNT.fullmatch(part) for part in counts.split(",")]
    return [part[1] for part in parts if part for _ in range(int(part[2] or 1))] if all(parts) else []


def _fold_counts(counts: Iterable[str]) -> str:
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ",".join(count if times == 1 else f"{count}(x{times})" for count, times in runs)
