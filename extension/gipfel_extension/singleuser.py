"""Single-user server: it binds its port first, keeps the socket, and reports the port to the hub."""

import http
import os
import socket
import sys
import threading
import time
import urllib.error
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser.extension import JupyterHubSingleUser

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, hold_port

from .cli.in_terminals import prepare_terminals
from .hub_post import post_to_hub
from .kernels import offer_image_kernel
from .kernels.private_specs import private

_ANSWER_S = 30.0
_PATIENCE_S = 300.0
_PAUSE_S = 1.0


class HeldSocketServerApp(ServerApp):
    """A server on sockets that were bound before it started, whose kernels open no ports.

    Choosing a port, closing it and binding it again is a race that another process on the node can win.
    """

    held: ClassVar[Sequence[socket.socket]] = ()

    def init_configurables(self) -> None:
        """Make the server's parts, with the kernelspecs of a shared node."""
        # The default of the next line asks it; the server makes the same one a moment later.
        self.gateway_config = GatewayClient.instance(parent=self)
        # Kernels of a gateway run elsewhere, and its kernelspecs are asked for asynchronously.
        if not self.gateway_config.gateway_enabled:
            self.kernel_spec_manager_class = private(self.kernel_spec_manager_class)
        super().init_configurables()

    def _find_http_port(self) -> None:
        """Skip the search: the port is held."""

    def _bind_http_server_tcp(self) -> bool:
        self.http_server.add_sockets(list(self.held))
        threading.Thread(target=self._report, name="report-port", daemon=True).start()
        return True

    def _report(self) -> None:
        try:
            report_port(self.held[0].getsockname()[1], dict(os.environ))
        except OSError as error:
            self.log.critical("The hub did not take this server's port, so it ends: %s", error)
            self.io_loop.add_callback(self.stop)


class GipfelSingleUser(JupyterHubSingleUser):
    """JupyterHub's single-user extension on a server whose socket is held."""

    serverapp_class = HeldSocketServerApp

    @classmethod
    def get_extension_package(cls) -> str:
        """Return the package whose extension is loaded: JupyterHub's, not that of this class."""
        return "jupyterhub"


def report_port(port: int, environment: dict[str, str]) -> None:
    """Report to the hub on which port this server answers, with the server's own token.

    A hub that does not answer may be restarting: it is asked again for five minutes.

    Raises
    ------
    OSError
        The hub refused the port, or could not be reached.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return post_to_hub("/gipfel/server", {"port": port}, environment, limit_s=_ANSWER_S)
        except urllib.error.HTTPError as error:
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                raise
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def main() -> None:
    """Bind, then start JupyterLab behind the hub's login."""
    address = urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", ""))
    if not address.scheme:
        sys.exit("This server is started by a hub: JUPYTERHUB_SERVICE_URL is not set.")
    try:
        ports = PortRange.parse(os.environ.get(PORTS_VARIABLE, ""))
        HeldSocketServerApp.held = (hold_port(address.hostname or "", ports),)
    except GipfelError as error:
        sys.exit(f"gipfel: {error}")
    port = HeldSocketServerApp.held[0].getsockname()[1]
    host = f"[{address.hostname}]" if ":" in (address.hostname or "") else address.hostname or ""
    os.environ["JUPYTERHUB_SERVICE_URL"] = urlunsplit(address._replace(netloc=f"{host}:{port}"))
    problem = offer_image_kernel(os.environ)
    if problem:
        sys.stderr.write(f"gipfel: {problem}\n")
    # A node is shared: messages to kernels go through files of the user's own, not through ports of the node.
    arguments = ["--KernelManager.transport=ipc", *prepare_terminals(os.environ)]
    if os.geteuid() == 0:
        arguments.append("--allow-root")
    GipfelSingleUser.launch_instance([*arguments, *sys.argv[1:]])


if __name__ == "__main__":
    main()
