"""Topology tab of the job page: what one run stored of its nodes, with its ranks and a selection."""

from pathlib import Path
from typing import Any

from pydantic import Field

from gipfel_cluster.model import GipfelError

from ..diagnosis.role_selection import parse_selection
from ..job.topology import JobTopology, Vetted, job_topology
from ..telemetry.sample import SourceError
from ..telemetry.store.overview import read_overview
from ..topology.read import read_topology
from ..vetting.report import read_report
from .job import JobQuery, read_content


class TopologyQuery(JobQuery):
    """Run of the page, and an expression such as ``pp=6,7 & dp=0`` that selects ranks."""

    select: str = Field("", max_length=1000)


def topology_document(folder: Path, query: TopologyQuery) -> dict[str, Any]:
    """Return the topology of a run as JSON.

    Raises
    ------
    GipfelError
        The selection is not valid for this job.
    """
    return topology_of_run(folder, query).model_dump(mode="json")


def topology_of_run(folder: Path, query: TopologyQuery) -> JobTopology:
    """Return the topology of a run folder.

    Raises
    ------
    GipfelError
        The selection is not valid for this job.
    """
    content = read_content(folder, query)
    devices = read_overview(folder / "telemetry", buckets=1, metrics=()).devices
    nodes = {*(each.node for each in content.job.ranks), *(each.node for each in devices)} - {""}
    try:
        return job_topology(
            content,
            read_topology(folder, nodes),
            devices,
            selection=parse_selection(query.select),
            vetted=_vetted(folder),
        )
    except SourceError as error:
        raise GipfelError(error.problem, error.fix) from error


def _vetted(folder: Path) -> dict[str, Vetted]:
    """Return the verdicts of the run's last vetting by node; empty without a readable one."""
    try:
        report = read_report(folder)
    except (GipfelError, OSError):
        return {}
    good: dict[str, Vetted] = dict.fromkeys(report.good_nodes, "pass")
    return {**good, **dict.fromkeys(report.bad_nodes, "fail")}
