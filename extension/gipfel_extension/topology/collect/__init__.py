"""Collection of a node's topology without root: sysfs, NVML, AMD's driver and Slurm's variables.

:func:`collect_node` reads this node; a recorder stores it with :func:`store_node`. It needs no pydantic and
no web server.
"""

import json
import logging
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...telemetry.events import file_name
from ...telemetry.files import replace_file
from .. import FOLDER, MOST_SLURM_BYTES, SLURM_FILE, NodeTopology, slurm_place
from .hardware import GpuTopologyReader, KfdTopology, NvmlTopology, nics_of, numa_nodes, short_text

log = logging.getLogger(__name__)
_SCONTROL = ("scontrol", "show", "topology")
_SCONTROL_S = 10.0
#: Patterns for the first entry of Slurm's list of nodes, and for the first number in its brackets: the first
#: node of ``nid[001-004,7],login`` is nid001.
_FIRST_OF_LIST, _BRACKETS = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+"), re.compile(r"\[(\w+)[^\]]*\]")


def collect_node(
    node: str,
    environment: Mapping[str, str],
    time_ns: int,
    *,
    system: Path = Path("/sys"),
    xname_file: Path = Path("/etc/cray/xname"),
    readers: Sequence[GpuTopologyReader] | None = None,
) -> NodeTopology:
    """Return this node's topology, without parts that can't be read.

    Parameters
    ----------
    environment
        Slurm's variables of a task of this node.
    time_ns
        Current time (UTC).
    readers
        Readers of GPUs; None for NVIDIA's and AMD's.
    """
    readers = (NvmlTopology(system), KfdTopology(system)) if readers is None else readers
    parts = [reader.read() for reader in readers]
    switches, plugin = slurm_place(environment)
    return NodeTopology(
        node,
        time_ns,
        numa_nodes(system),
        tuple(gpu for part in parts for gpu in part.gpus),
        nics_of(system),
        tuple(link for part in parts for link in part.links),
        switches,
        plugin,
        short_text(xname_file),
        tuple(problem for part in parts for problem in part.problems),
    )


def store_node(run: Path, topology: NodeTopology) -> Path:
    """Write a node's file into a run folder, in place of an earlier one, and return its path.

    Raises
    ------
    OSError
        It can't be written.
    """
    name = f"{file_name(topology.node) or 'node'}.json"
    return _write(run / FOLDER, name, json.dumps(topology.to_json()) + "\n")


def is_first_node(environment: Mapping[str, str], node: str) -> bool:
    """Return whether a node is the first one of its Slurm job: only that one queries Slurm's controller.

    SLURM_NODEID can't be used: it counts the nodes of a step, and each recorder's step has one node.
    """
    first = _FIRST_OF_LIST.match(environment.get("SLURM_JOB_NODELIST", ""))
    return bool(node) and first is not None and _BRACKETS.sub(r"\1", first[0]) == node


def slurm_topology(environment: Mapping[str, str], command: Sequence[str] = _SCONTROL) -> str:
    """Return the output of ``scontrol show topology``; empty if Slurm has no topology or does not respond."""
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SCONTROL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.info("Slurm's topology is unknown: %s", error)
        return ""
    text = done.stdout.decode(errors="replace")
    known = any(word in text for word in ("SwitchName=", "BlockName="))
    return text if known and done.returncode == 0 and len(text) <= MOST_SLURM_BYTES else ""


def record_topology(run: Path, node: str, environment: Mapping[str, str], time_ns: int) -> None:
    """Store this node's topology, and on the first node of a job also Slurm's; log errors."""
    try:
        store_node(run, collect_node(node, environment, time_ns))
        if is_first_node(environment, node) and (text := slurm_topology(environment)):
            _write(run / FOLDER, SLURM_FILE, text)
    except Exception as error:  # noqa: BLE001 - the recording continues without the topology
        log.warning("The topology of %s can't be stored: %s", node, error)


def _write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(folder / name, text)
    return folder / name
