"""Probes of ports: what a server binds, where `make up` serves, and the hub that a server belongs to."""

import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request

from gipfel_cluster.model import GipfelError
from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, hold_port

from .examine import Finding, Subject
from .machine import Machine

PORTS = Subject(name="free port", group="Network")
BROWSER = Subject(name="browser's port", group="Network")
HUB = Subject(name="hub", group="Network")

_SECONDS = 5.0
_MOST_BYTES = 1 << 16
_LOOPBACK = "127.0.0.1"


def ports(machine: Machine) -> Finding:
    """Bind a port as a server would."""
    given = machine.environment.get(PORTS_VARIABLE, "")
    try:
        wanted = PortRange.parse(given)
        held = hold_port(_LOOPBACK, wanted)
    except GipfelError as error:
        return PORTS.missing(error.problem, error.fix or "ip link set lo up")
    held.close()
    return PORTS.ok(f"A server can bind one of {wanted}." if wanted else "A server can bind one.")


def browser(machine: Machine) -> Finding:
    """See whether the port that `make up` serves on is free, or a hub answers there already."""
    if "JUPYTERHUB_API_URL" in machine.environment or "SLURM_JOB_ID" in machine.environment:
        return BROWSER.not_applicable("A server's pages come through its hub.")
    given = machine.environment.get("GIPFEL_PORT", "8000")
    if not (given.isdecimal() and 0 < int(given) < 65536):
        return BROWSER.missing(f"GIPFEL_PORT is {given!r}, not a port.", "export GIPFEL_PORT=8000")
    try:
        with socket.create_connection((_LOOPBACK, int(given)), timeout=_SECONDS):
            pass
    except OSError:
        return BROWSER.ok(f"Port {given} of this machine is free for `make up`.")
    version = _hub_version(f"http://{_LOOPBACK}:{given}/hub/api")
    if version:
        return BROWSER.ok(f"A hub (JupyterHub {version}) answers on port {given}.")
    return BROWSER.warning(f"Port {given} is taken by another program.", "GIPFEL_PORT=8001 make up")


def hub(machine: Machine) -> Finding:
    """Ask the hub that this server belongs to."""
    url = machine.environment.get("JUPYTERHUB_API_URL", "")
    if not url:
        return HUB.not_applicable("This is not the server of a hub.")
    version = _hub_version(url)
    if version:
        return HUB.ok(f"JupyterHub {version} answers at {url}.")
    return HUB.missing(
        f"The hub does not answer at {url} within {_SECONDS:.0f} s.",
        f"curl -m 5 {url}  # on the hub: a firewall, or c.JupyterHub.hub_connect_ip",
    )


def _hub_version(url: str) -> str:
    """Return the version of the hub at an address; empty where none answers."""
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        return ""
    # A hub is reached directly, whatever proxies the user's other requests take.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/", timeout=_SECONDS) as answer:
            content = json.loads(answer.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return ""
    version = content.get("version") if isinstance(content, dict) else None
    return version if isinstance(version, str) else ""
