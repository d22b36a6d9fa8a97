"""Server extension: its configuration, its start and its end.

Nothing here imports what only the routes need: the server answers first.
"""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jupyter_server.extension.application import ExtensionApp
from tornado.web import Application
from traitlets import Dict, Float, List, Unicode

from .routes import add_routes, preload_routes

if TYPE_CHECKING:
    from .server.components import ServerComponents

#: In this time the hub sees that the server answers.
_COMPONENTS_AFTER_S = 0.3
#: In this time the browser gets the page.
_PRELOAD_AFTER_S = 1.0


class GipfelExtension(ExtensionApp):
    """Gipfel's routes and recorders in a Jupyter server."""

    name = "gipfel_extension"
    load_other_extensions = True

    interval = Float(
        None,
        allow_none=True,
        min=0.1,
        help="Seconds between two samples of the recorders that this server starts, at least 0.1. "
        "Default: None, which means 0.1 for GPUs that update their counters that often (the live stream then "
        "has means over 1 s), and 1 for others. The recorder of a job uses the interval of the job.",
    ).tag(config=True)
    sources = List(
        Unicode(),
        default_value=["host", "auto"],
        help="Sources that a server outside a job records on its machine: 'host', 'nvml', 'auto' (NVML if "
        "there is a GPU), 'replay:FILE' or 'synthetic:NAME'. Default: host and auto. Empty: only the host.",
    ).tag(config=True)

    time_left_notices = List(
        Float(min=0),
        default_value=[30.0, 10.0, 2.0],
        help="Minutes before the end of the job at which JupyterLab shows a notice. Default: 30, 10, 2.",
    ).tag(config=True)
    report_interval = Float(
        30.0,
        min=0.5,
        help="Seconds between two activity reports to the hub. Default: 30.",
    ).tag(config=True)
    orphan_grace = Float(
        600.0,
        min=0,
        help="Seconds for which the hub must refuse this server's token before it stops. Default: 600.",
    ).tag(config=True)
    gpu_threshold = Float(
        0.05,
        help="Activity in the last minute from which a GPU counts as busy, 0 to 1. Default: 0.05.",
    ).tag(config=True)

    advice_hold = Float(
        60.0,
        min=0,
        help="Seconds for which evidence must be present before the panel shows an advice, and absent before "
        "the panel removes it. Default: 60.",
    ).tag(config=True)

    cluster_prometheus = Unicode(
        "",
        help="Address of the site's Prometheus, from which the job page shows the cluster around a job, such "
        "as 'https://prometheus.example.org'. Default: empty, which means sinfo and squeue.",
    ).tag(config=True)
    cluster_queries = Dict(
        value_trait=Unicode(),
        help="PromQL of the numbers of nodes (allocated, idle, down) and jobs (running, pending) there. "
        "Default: empty, which means the names of the Prometheus exporter for Slurm.",
    ).tag(config=True)

    _components: "ServerComponents | None" = None
    _starting: asyncio.Task[None] | None = None

    @property
    def _web_app(self) -> Application:
        if self.serverapp is None:
            raise RuntimeError("The extension is not linked to a server yet.")
        found: Application = self.serverapp.web_app
        return found

    def initialize_handlers(self) -> None:
        """Add the routes."""
        add_routes(self._web_app, self._web_app.settings["base_url"], self.components)

    def components(self) -> "ServerComponents":
        """Return what the routes use; the first call creates it."""
        if self._components is None:
            from .server.components import ServerComponents  # noqa: PLC0415 - delays the start

            traits = {name: getattr(self, name) for name in self.class_own_traits(config=True)}
            self._components = ServerComponents(traits, self._web_app.settings, self.log, self._stop_server)
        return self._components

    def _stop_server(self, reason: str) -> None:
        self.log.critical("%s", reason)
        if self.serverapp is not None:
            self.serverapp.stop(from_signal=True)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:  # noqa: ARG002
        self._starting = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        try:
            await asyncio.sleep(_COMPONENTS_AFTER_S)
            # In a thread, so that the server answers meanwhile.
            await asyncio.to_thread(import_module, f"{__package__}.server.components")
            await self.components().start()
            await asyncio.sleep(_PRELOAD_AFTER_S)
            await asyncio.to_thread(preload_routes)
        except Exception:
            self.log.exception("Gipfel's part of this server did not start")

    async def stop_extension(self) -> None:
        """Stop the recorders and the feed."""
        if self._starting is not None:
            self._starting.cancel()
        if self._components is not None:
            await self._components.stop()
