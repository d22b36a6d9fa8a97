"""Probe of the job that this is typed in: which one, where, and in whose container."""

import json
from pathlib import Path
from typing import Any

from .examine import Finding, Subject
from .machine import Machine

JOB = Subject(name="this job", group="Cluster")


def job(machine: Machine) -> Finding:
    """Name the job, its node and its environment."""
    given = machine.environment
    number = given.get("SLURM_JOB_ID") or given.get("GIPFEL_JOB_ID")
    if not number:
        return JOB.not_applicable("This is not a job.")
    node = given.get("GIPFEL_NODE") or given.get("SLURMD_NODENAME") or "this node"
    if not given.get("GIPFEL_RUN"):
        return JOB.ok(f"{number} on {node}, not started by Gipfel.")
    record = record_of(machine)
    edf = record.get("edf")
    name = str(edf.get("name", "")) if isinstance(edf, dict) else ""
    where = "without a container"
    if machine.in_container:
        where = f"in the container of {name or 'its EDF'}, entered by {given['GIPFEL_ENGINE']}"
    nodes = record.get("nodes")
    count = f"{len(nodes)} nodes, " if isinstance(nodes, list) and len(nodes) > 1 else ""
    return JOB.ok(f"{number} on {node}, {count}{where}.")


def record_of(machine: Machine) -> dict[str, Any]:
    """Return the record of the job's run; empty where it can't be read."""
    run = machine.environment.get("GIPFEL_RUN", "")
    try:
        found = json.loads(machine.read(Path(run, "record.json")) if run else "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
