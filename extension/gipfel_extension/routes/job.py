"""``gipfel/job``: ranks, figures and topology of a run for the job page."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..server.earlier_runs import EarlierQuery, earlier_document
from ..server.job import JobQuery, JobView, job_document, job_figures
from ..server.job_tabs import (
    ClusterAround,
    DarkQuery,
    TopologyQuery,
    checkpoints_document,
    communication_document,
    network_document,
    storage_document,
    topology_document,
)
from ..server.job_verdicts import JobVerdicts
from ..server.security import security_document
from .base import GipfelRouteHandler, route

_Query = TypeVar("_Query", bound=JobQuery)


def _of_run(
    model: type[_Query], document: Callable[[Path, _Query], dict[str, Any]]
) -> type[GipfelRouteHandler]:
    """Return a handler whose ``GET`` sends a document about the run that the query names."""

    class RunDocumentRouteHandler(GipfelRouteHandler):
        @route
        async def get(self) -> None:
            query = self.query_as(model)
            folder = await self.telemetry.run_named(query.run)
            self.finish(await asyncio.to_thread(document, folder, query))

    return RunDocumentRouteHandler


#: ``GET``: ranks of a run with roles, hardware, logs and failures; contradictions between sources.
JobRouteHandler = _of_run(JobQuery, job_document)
#: ``GET``: switches, nodes, GPUs and NICs of a run, with its ranks and a selection of them.
JobTopologyRouteHandler = _of_run(TopologyQuery, topology_document)
#: ``GET``: bytes between the ranks of a job, and its slowest collectives.
JobCommunicationRouteHandler = _of_run(DarkQuery, communication_document)
#: ``GET``: connections of the job's programs, and ports that they opened.
JobNetworkRouteHandler = _of_run(JobQuery, lambda folder, _: network_document(folder))
#: ``GET``: the security verdict on a job's image. If the run has none, the image is scanned now, which may
#: take seconds.
JobSecurityRouteHandler = _of_run(
    JobQuery, lambda folder, query: security_document(folder, query.launch, os.environ)
)
#: ``GET``: checkpoints of a run, what they cost, and the space left for them.
JobCheckpointsRouteHandler = _of_run(DarkQuery, checkpoints_document)
#: ``GET``: input and output of a job.
JobStorageRouteHandler = _of_run(JobQuery, lambda folder, _: storage_document(folder))
#: ``GET``: steps of a run beside those of earlier runs of the same script, size and image.
JobEarlierRouteHandler = _of_run(EarlierQuery, earlier_document)
#: ``GET``: verdicts on a job, the worst first.
JobVerdictsRouteHandler = _of_run(JobQuery, JobVerdicts().document)


class JobFiguresRouteHandler(GipfelRouteHandler):
    """``GET``: bands, heat map and users' metrics of all ranks between two times."""

    @route
    async def get(self) -> None:
        """Send the figures; the heat map's values are bytes."""
        view = self.query_as(JobView, names="name", bands="band", figures="figure")
        folder = await self.telemetry.run_named(view.run)
        text = await asyncio.to_thread(
            lambda: json.dumps(job_figures(folder, view), allow_nan=False, separators=(",", ":"))
        )
        self.finish(text)


class JobClusterRouteHandler(GipfelRouteHandler):
    """``GET``: state of the cluster that a job runs on."""

    @route
    async def get(self) -> None:
        """Send nodes, queue and other jobs on the job's nodes, either current or recorded."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        around: ClusterAround = self.settings["gipfel_cluster"]
        self.finish(await asyncio.to_thread(around.document, folder))
