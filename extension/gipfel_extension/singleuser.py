"""Single-user server: it binds its port before it starts, and reports the port to the hub.

`PrivateKernelSpecs` are kernelspecs for a shared node: their kernels open no port that other users could
reach.
"""

import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser
from traitlets import Bool, default

from gipfel_cluster.hub_requests import report_port
from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, bind_port
from gipfel_cluster.runtime.kernel_launch import with_private_sockets

from .cli.completion import prepare_terminals
from .kernels import offer_image_kernel

DEBUGGER_VARIABLE = "GIPFEL_DEBUGGER"


class PrivateKernelSpecs(KernelSpecManager):
    """Mixin that `with_private_specs` adds to a class of kernelspec managers."""

    debugger = Bool(
        help="Whether the debugger is offered. It listens on a port of the node, and every user of the node "
        "who connects to it runs code as the kernel's user: set it only where the node is yours alone. "
        "Default: whether $GIPFEL_DEBUGGER is 1.",
    ).tag(config=True)

    @default("debugger")
    def _debugger_of_the_site(self) -> bool:
        return os.environ.get(DEBUGGER_VARIABLE) == "1"

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return a kernelspec whose kernel opens no ports."""
        spec: KernelSpec = super().get_kernel_spec(kernel_name)
        spec.argv = with_private_sockets(spec.argv)
        if not self.debugger:
            spec.metadata = {**spec.metadata, "debugger": False}
        return spec

    def get_all_specs(self) -> dict[str, Any]:
        """Return all kernelspecs by name, in the form for JupyterLab."""
        found: dict[str, Any] = super().get_all_specs()
        if not self.debugger:
            for each in found.values():
                each["spec"]["metadata"] = {**each["spec"].get("metadata", {}), "debugger": False}
        return found


def with_private_specs(manager: type[KernelSpecManager]) -> type[KernelSpecManager]:
    """Return a class of kernelspec managers with `PrivateKernelSpecs` as a mixin."""
    return type(manager.__name__, (PrivateKernelSpecs, manager), {})


class BoundSocketServerApp(ServerApp):
    """Jupyter server on sockets that were bound before it started; its kernels open no ports.

    If the port were closed and bound again, another process on the node could take it in between.
    """

    bound_sockets: ClassVar[Sequence[socket.socket]] = ()

    def init_configurables(self) -> None:
        """Create the server's components, with kernelspecs for a shared node."""
        # The default of `kernel_spec_manager_class` reads it; the server creates the same instance later.
        self.gateway_config = GatewayClient.instance(parent=self)
        # Kernels of a gateway run on other machines, and its kernelspecs are fetched asynchronously.
        if not self.gateway_config.gateway_enabled:
            self.kernel_spec_manager_class = with_private_specs(self.kernel_spec_manager_class)
        super().init_configurables()

    def _find_http_port(self) -> None:
        """Do nothing: the port is already bound."""

    def _bind_http_server_tcp(self) -> bool:
        self.http_server.add_sockets(list(self.bound_sockets))
        threading.Thread(target=self._report, name="report-port", daemon=True).start()
        return True

    def _report(self) -> None:
        try:
            report_port(self.bound_sockets[0].getsockname()[1], dict(os.environ))
        except OSError as error:
            self.log.critical("The hub did not accept this server's port, so the server stops: %s", error)
            self.io_loop.add_callback(self.stop)


class GipfelSingleUser(JupyterHubSingleUser):
    """JupyterHub's single-user server as a `BoundSocketServerApp`."""

    serverapp_class = BoundSocketServerApp

    @classmethod
    def get_extension_package(cls) -> str:
        """Return the package of the extension to load, which is JupyterHub's and not that of this class."""
        return "jupyterhub"


def main() -> None:
    """Bind a port, then start JupyterLab with the hub's authentication."""
    address = urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", ""))
    if not address.scheme:
        sys.exit("JUPYTERHUB_SERVICE_URL is not set: this server must be started by a hub.")
    try:
        ports = PortRange.parse(os.environ.get(PORTS_VARIABLE, ""))
        BoundSocketServerApp.bound_sockets = (bind_port(address.hostname or "", ports),)
    except GipfelError as error:
        sys.exit(f"gipfel: {error}")
    port = BoundSocketServerApp.bound_sockets[0].getsockname()[1]
    host = f"[{address.hostname}]" if ":" in (address.hostname or "") else address.hostname or ""
    os.environ["JUPYTERHUB_SERVICE_URL"] = urlunsplit(address._replace(netloc=f"{host}:{port}"))
    problem = offer_image_kernel(os.environ)
    if problem:
        sys.stderr.write(f"gipfel: {problem}\n")
    # Nodes are shared, so kernels use sockets that only the user can access, and no TCP ports.
    arguments = ["--KernelManager.transport=ipc", *prepare_terminals(os.environ)]
    if os.geteuid() == 0:
        arguments.append("--allow-root")
    GipfelSingleUser.launch_instance([*arguments, *sys.argv[1:]])


if __name__ == "__main__":
    main()
