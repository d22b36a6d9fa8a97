"""Gathers the `Signs` of use of a Jupyter server."""

import asyncio
import os
import time
from collections.abc import MutableMapping
from datetime import datetime
from typing import Any

from gipfel_cluster.model import GipfelError

from ..training.launches.claims import running_here
from .activity import ProgramWatch, Signs, gpu_share
from .telemetry import ServerTelemetry

_WINDOW_S = 60.0
_SAVED = "gipfel_saved_last_activity"
#: An open tab asks for kernels and sessions every few seconds; that is no use of a GPU.
_POLLED = frozenset(("api_last_activity",))


class ServerUse:
    """Kernels, terminals, saved files, GPUs and programs of one Jupyter server.

    Parameters
    ----------
    settings
        The server's: its kernel manager, its contents manager and its times of last activity.
    """

    def __init__(self, settings: MutableMapping[str, Any], telemetry: ServerTelemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._programs = ProgramWatch(os.getpid())

    def watch_saving(self) -> None:
        """Count a saved file as use."""
        contents = self._settings["contents_manager"]
        if hasattr(contents, "register_post_save_hook"):
            contents.register_post_save_hook(self._note_saved)

    def _note_saved(self, **_: Any) -> None:
        self._settings[_SAVED] = datetime.now().astimezone()

    async def look(self) -> Signs:
        """What there is to see now; files and processes are read on a thread."""
        kernels = self._settings["kernel_manager"]
        states = [kernels.get_kernel(each) for each in kernels.list_kernel_ids()]
        busy = sum(getattr(each, "execution_state", "") == "busy" for each in states)
        used = [_seconds(getattr(each, "last_activity", None)) for each in states]
        used += [
            _seconds(value)
            for name, value in self._settings.items()
            if name.endswith("_last_activity") and name not in _POLLED
        ]
        steps, cores = await asyncio.to_thread(self._programs.look, time.monotonic())
        return Signs(
            last_used=max(used, default=0.0),
            busy_kernels=busy,
            gpu_share=await self._gpu_share(),
            # Nobody's child here: a launch outlives the server, and so must the server's job.
            steps=(*steps, *await asyncio.to_thread(running_here, os.environ)),
            cores=cores,
        )

    async def _gpu_share(self) -> float | None:
        try:
            _, broadcast = await self._telemetry.started()
            devices = await broadcast.devices()
            table = await broadcast.table(_WINDOW_S)
        except GipfelError:
            return None
        return await asyncio.to_thread(gpu_share, table, devices, time.time_ns())


def _seconds(moment: object) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else 0.0
