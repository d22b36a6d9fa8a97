"""``gipfel topology``: switches, nodes, NUMA nodes, GPUs and NICs of a run or of this machine."""

import os
import time
from typing import TYPE_CHECKING

import click

from .terminal import examples, report_line

if TYPE_CHECKING:
    from ..job.topology import JobTopology

_WIDTH = 80
_UNREADABLE = 2


@click.command(
    epilog=examples(
        "gipfel topology",
        "gipfel topology alps-48812 --select 'pp=6,7 & dp=0'",
        "gipfel topology --here",
        "gipfel topology alps-48812 --json",
    )
)
@click.argument("run", metavar="[RUN]", default="")
@click.option("--here", is_flag=True, help="This machine as it is now; reads no run.")
@click.option(
    "--select",
    metavar="EXPRESSION",
    default="",
    help="Ranks to print, as 'pp=6,7 & dp=0', 'rank=0-7', 'node=nid001', 'switch=s1' or 'nic=cxi0@nid001'.",
)
@click.option(
    "--layout",
    metavar="SIZES",
    default="",
    help="Sizes of the axes, as pp=4,dp=2, where the run has none.",
)
@click.option("--json", "as_document", is_flag=True, help="One JSON document on stdout, nothing else.")
def topology(run: str, *, here: bool, select: str, layout: str, as_document: bool) -> int:
    """Print where a job runs: switches, nodes, NUMA nodes, GPUs, NICs, links, and the ranks on them.

    RUN is a run folder or its name, by default that of this job, else your newest. Recorders store it once,
    without root, from NVML, sysfs and Slurm. Nodes of equal hardware are printed once.

    The last line tells how scattered the job is: leaf switches used, the fewest possible, and the share of
    neighbouring ranks (pipeline stages, data-parallel replicas) that are on different ones.

    Exit status: 0 printed, 2 the run or the selection is not valid.
    """
    from gipfel_cluster.model import GipfelError  # noqa: PLC0415 - pydantic, which --help can do without

    from ..job.topology_lines import topology_lines  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415

    if here and (run or select or layout):
        report_line("--here reads this machine and no run. Leave out RUN, --select and --layout.")
        return _UNREADABLE
    try:
        found = _here() if here else _of_run(run, select, layout)
    except (SourceError, GipfelError) as error:
        report_line(str(error))
        return _UNREADABLE
    if as_document:
        click.echo(found.model_dump_json())
        return 0
    for line in topology_lines(found, _WIDTH):
        click.echo(line)
    return 0


def _of_run(run: str, select: str, layout: str) -> "JobTopology":
    from pydantic import ValidationError  # noqa: PLC0415

    from ..server.job_tabs import TopologyQuery, topology_of_run  # noqa: PLC0415
    from ..telemetry.sample import SourceError  # noqa: PLC0415
    from .scored_run import resolve_recording  # noqa: PLC0415

    path = resolve_recording(run)
    if not (path / "telemetry").is_dir():
        raise SourceError(f"{path} is not a run folder.", "`gipfel runs` lists yours.")
    try:
        query = TopologyQuery(select=select, layout=layout)
    except ValidationError as error:
        raise SourceError(f"--select or --layout is not valid: {error.errors()[0]['msg']}.") from error
    return topology_of_run(path.resolve(), query)


def _here() -> "JobTopology":
    from ..diagnosis.roles import Roles  # noqa: PLC0415
    from ..job.ranks import Job, JobContent  # noqa: PLC0415
    from ..job.topology import job_topology  # noqa: PLC0415
    from ..topology.collect import collect_node, slurm_topology  # noqa: PLC0415
    from ..topology.read import (  # noqa: PLC0415
        Fabric,
        merge,
        parse_fabric,
    )

    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    own = collect_node(node, os.environ, time.time_ns())
    problems = []
    try:
        fabric = parse_fabric(slurm_topology(os.environ))
    except ValueError as error:
        fabric = Fabric()
        problems.append(f"Slurm's topology can't be read: {error}.")
    job = Job(
        run=node,
        launch="",
        launches=(),
        world_size=None,
        source="",
        axes={},
        ranks=(),
        missing=(),
        problems=(),
    )
    return job_topology(JobContent(job, Roles()), merge([own], fabric, (), (*own.problems, *problems)))
