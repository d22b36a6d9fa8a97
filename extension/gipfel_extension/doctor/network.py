"""Probes of the network: ports for servers, the port of `make up`, and the hub of this server."""

import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, bind_port

from .examine import Finding, ProbeTopic
from .machine import Machine

PORTS = ProbeTopic(name="free port", group="Network")
HUB_PORT = ProbeTopic(name="port of make up", group="Network")
HUB = ProbeTopic(name="hub", group="Network")

_TIMEOUT_S = 5.0
_MAX_RESPONSE_BYTES = 1 << 16
_LOOPBACK = "127.0.0.1"


def server_port(machine: Machine) -> Finding:
    """Check that a server can bind a port."""
    try:
        ports = PortRange.parse(machine.environment.get(PORTS_VARIABLE, ""))
        bound = bind_port(_LOOPBACK, ports)
    except GipfelError as error:
        return PORTS.missing(error.problem, error.fix or "ip link set lo up")
    bound.close()
    return PORTS.ok(f"A server can bind one of {ports}." if ports else "A server can bind a port.")


def hub_port(machine: Machine) -> Finding:
    """Check that the port of `make up` is free, or that a hub answers there."""
    if "JUPYTERHUB_API_URL" in machine.environment or "SLURM_JOB_ID" in machine.environment:
        return HUB_PORT.not_applicable("A server is reached through its hub.")
    given = machine.environment.get("GIPFEL_PORT", "8000")
    if not (given.isdecimal() and 0 < int(given) < 65536):
        return HUB_PORT.missing(f"GIPFEL_PORT is {given!r}, which is not a port.", "export GIPFEL_PORT=8000")
    try:
        with socket.create_connection((_LOOPBACK, int(given)), timeout=_TIMEOUT_S):
            pass
    except OSError:
        return HUB_PORT.ok(f"Port {given} of this machine is free for `make up`.")
    version = _hub_version(f"http://{_LOOPBACK}:{given}/hub/api")
    if version:
        return HUB_PORT.ok(f"A hub (JupyterHub {version}) answers on port {given}.")
    return HUB_PORT.warning(f"Port {given} is in use by another program.", "GIPFEL_PORT=8001 make up")


def hub(machine: Machine) -> Finding:
    """Check that the hub of this server answers."""
    url = machine.environment.get("JUPYTERHUB_API_URL", "")
    if not url:
        return HUB.not_applicable("This process does not belong to a hub's server.")
    version = _hub_version(url)
    if version:
        return HUB.ok(f"JupyterHub {version} answers at {url}.")
    return HUB.missing(
        f"The hub does not answer at {url} within {_TIMEOUT_S:.0f} s.",
        f"curl -m 5 {url}  # on the hub: a firewall, or c.JupyterHub.hub_connect_ip",
    )


def _hub_version(url: str) -> str:
    """Return the version of the hub at an address; empty if none answers."""
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        return ""
    # The hub is reached directly, even if the environment names a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/", timeout=_TIMEOUT_S) as answer:
            content = json.loads(answer.read(_MAX_RESPONSE_BYTES))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return ""
    version = content.get("version") if isinstance(content, dict) else None
    return version if isinstance(version, str) else ""
