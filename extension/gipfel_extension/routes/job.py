"""``gipfel/job``: ranks, figures and topology of a run for the job page."""

import asyncio
import json
import os
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.model import GipfelError, one_line

from ..server.earlier_runs import EarlierQuery, earlier_document
from ..server.job import JobQuery, JobView, job_document, job_figures
from ..server.job_tabs import (
    CheckpointsQuery,
    ClusterAround,
    CommunicationQuery,
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

_verdicts = JobVerdicts()


class JobRouteHandler(GipfelRouteHandler):
    """``GET``: ranks of a run with roles, hardware, logs and failures; contradictions between sources."""

    @route
    async def get(self) -> None:
        """Send ranks, events and the names of users' metrics."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(job_document, folder, query))


class JobFiguresRouteHandler(GipfelRouteHandler):
    """``GET``: bands, heat map and users' metrics of all ranks between two times."""

    @route
    async def get(self) -> None:
        """Send the figures; the heat map's values are bytes."""
        view = self._view()
        folder = await self.telemetry.run_named(view.run)
        text = await asyncio.to_thread(
            lambda: json.dumps(job_figures(folder, view), allow_nan=False, separators=(",", ":"))
        )
        self.set_header("Content-Type", "application/json")
        self.finish(text)

    def _view(self) -> JobView:
        several = {"names": "name", "bands": "band", "figures": "figure"}
        known = (JobView.model_fields.keys() - several) & self.request.query_arguments.keys()
        values: dict[str, Any] = {name: self.get_query_argument(name) for name in known}
        for field, name in several.items():
            if given := self.get_query_arguments(name):
                values[field] = tuple(given)
        try:
            return JobView.model_validate(values)
        except ValidationError as error:
            raise GipfelError(one_line(f"The query is not valid: {error.errors()[0]['msg']}.")) from error


class JobTopologyRouteHandler(GipfelRouteHandler):
    """``GET``: switches, nodes, GPUs and NICs of a run, with its ranks and a selection of them."""

    @route
    async def get(self) -> None:
        """Send the topology."""
        query = self.query_as(TopologyQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(topology_document, folder, query))


class JobCommunicationRouteHandler(GipfelRouteHandler):
    """``GET``: bytes between the ranks of a job, and its slowest collectives."""

    @route
    async def get(self) -> None:
        """Send the report on the launch's dumps and NCCL files, and the matrix as a figure."""
        query = self.query_as(CommunicationQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(communication_document, folder, query))


class JobNetworkRouteHandler(GipfelRouteHandler):
    """``GET``: connections of the job's programs, and ports that they opened."""

    @route
    async def get(self) -> None:
        """Send the connections that the recorders saw."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(network_document, folder))


class JobSecurityRouteHandler(GipfelRouteHandler):
    """``GET``: the security verdict on a job's image."""

    @route
    async def get(self) -> None:
        """Send the verdict; if the run has none, the image is scanned now, which may take seconds."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(security_document, folder, query.launch, os.environ))


class JobCheckpointsRouteHandler(GipfelRouteHandler):
    """``GET``: checkpoints of a run, what they cost, and the space left for them."""

    @route
    async def get(self) -> None:
        """Send the checkpoints of the directories that the run's launches name."""
        query = self.query_as(CheckpointsQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(checkpoints_document, folder, query))


class JobStorageRouteHandler(GipfelRouteHandler):
    """``GET``: input and output of a job."""

    @route
    async def get(self) -> None:
        """Send the job's files with tier and access pattern, and advice on them."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(storage_document, folder))


class JobEarlierRouteHandler(GipfelRouteHandler):
    """``GET``: steps of a run beside those of earlier runs of the same script, size and image."""

    @route
    async def get(self) -> None:
        """Send the comparison, and the runs that it can be based on."""
        query = self.query_as(EarlierQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(earlier_document, folder, query))


class JobClusterRouteHandler(GipfelRouteHandler):
    """``GET``: state of the cluster that a job runs on."""

    @route
    async def get(self) -> None:
        """Send nodes, queue and other jobs on the job's nodes, either current or recorded."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        around: ClusterAround = self.settings["gipfel_cluster"]
        self.finish(await asyncio.to_thread(around.document, folder))


class JobVerdictsRouteHandler(GipfelRouteHandler):
    """``GET``: verdicts on a job, the worst first."""

    @route
    async def get(self) -> None:
        """Send verdicts of ``gipfel diagnose`` and from flight recorder dumps, and the launch's failures."""
        query = self.query_as(JobQuery)
        folder = await self.telemetry.run_named(query.run)
        self.finish(await asyncio.to_thread(_verdicts.document, folder, query))
