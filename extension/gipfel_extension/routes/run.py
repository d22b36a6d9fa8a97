"""``GET gipfel/run``: what this server runs in."""

import asyncio

from gipfel_cluster.model import GipfelError

from ..server.asked_gpus import missing_gpus
from .base import GipfelRouteHandler, route


class RunRouteHandler(GipfelRouteHandler):
    """Node, job, environment, time left, devices and record."""

    @route
    async def get(self) -> None:
        """Answer also where there is no run, with the reason."""
        try:
            run, broadcast = await self.telemetry.started()
            described = await asyncio.to_thread(run.describe)
            shown = await broadcast.devices()
            described["no_gpu"] = await asyncio.to_thread(missing_gpus, described["record"], shown, run.node)
            devices = [device.to_json() for device in shown]
        except GipfelError as error:
            described = {"run": None, "message": str(error), "node": "", "job_id": "", "cluster": ""}
            described |= {"edf": None, "ends_ns": None, "record": {}, "no_gpu": ""}
            devices = []
        ends = self.settings["gipfel_leaving"].ends
        if ends is not None:
            # The hub's word: the job's time may have been extended.
            described["ends_ns"] = int(ends) * 1_000_000_000
        self.finish({**described, "devices": devices})
