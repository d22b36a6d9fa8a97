"""The server extension: configuration, and the life of what the routes use."""

import os
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, List, TraitError, Unicode, validate

from gipfel_cluster.model import GipfelError

from .routes import ROUTES
from .server.telemetry import ServerTelemetry


class GipfelExtension(ExtensionApp):
    """Gipfel's routes and recorders in a Jupyter server."""

    name = "gipfel_extension"
    load_other_extensions = True

    interval = Float(
        1.0,
        help="Seconds between two samples of the recorders that this server starts, at least 0.1. "
        "Default: 1. The recorder of a job has the interval that the job was started with.",
    ).tag(config=True)
    sources = List(
        Unicode(),
        default_value=["host", "auto"],
        help="What a server outside a job records of its own machine: 'host', 'nvml', 'auto' (NVML where "
        "there is a GPU), 'replay:FILE' or 'synthetic:NAME'. Default: host and auto. Empty: only the host.",
    ).tag(config=True)

    @validate("interval")
    def _valid_interval(self, proposal: dict[str, Any]) -> float:
        value = float(proposal["value"])
        if value < 0.1:
            raise TraitError("GipfelExtension.interval must be at least 0.1 seconds.")
        return value

    def initialize_settings(self) -> None:
        """Make what the routes use; nothing is started before the event loop runs."""
        self.telemetry = ServerTelemetry(
            interval=self.interval,
            sources=tuple(self.sources) or ("host",),
            environment=dict(os.environ),
            log=self.log,
        )
        self.settings["gipfel"] = self.telemetry

    def initialize_handlers(self) -> None:
        """Add the routes."""
        self.handlers.extend([(rf"/{path}/?", handler) for path, handler in ROUTES])

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:  # noqa: ARG002
        try:
            await self.telemetry.started()
        except GipfelError as error:
            # A server without plots is better than no server; the panel shows the same line.
            self.log.error("%s", error)

    async def stop_extension(self) -> None:
        """End recorders and feed with the server."""
        await self.telemetry.stop()
