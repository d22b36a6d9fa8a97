"""A network between namespaces of this machine, and a link to the machine itself."""

import ipaddress
import json
import os
import random
import subprocess

from gipfel_cluster.model import GipfelError

_LIMIT_S = 10


def free_network() -> ipaddress.IPv4Network:
    """A network ``10.x.y.0/24`` that no address or route of this machine touches."""
    taken = [ipaddress.ip_network("10.0.0.0/16")]
    for what in ("address", "route"):
        shown = subprocess.run(
            ["ip", "-4", "-j", what, "show"], capture_output=True, text=True, timeout=_LIMIT_S, check=True
        )
        for entry in json.loads(shown.stdout or "[]"):
            if what == "address":
                found = [f"{info['local']}/{info['prefixlen']}" for info in entry.get("addr_info", [])]
            else:
                found = [entry["dst"]] if entry.get("dst", "default") != "default" else []
            taken += [ipaddress.ip_network(text, strict=False) for text in found]
    for _ in range(1000):
        network = ipaddress.IPv4Network(f"10.{random.randrange(1, 255)}.{random.randrange(256)}.0/24")
        if not any(network.overlaps(other) for other in taken if isinstance(other, ipaddress.IPv4Network)):
            return network
    raise GipfelError("No network 10.x.y.0/24 is free on this machine.")


class PrivateNetwork:
    """A bridge in the first member's network namespace, where no firewall of the machine's is in the way.

    Parameters
    ----------
    switch
        A process in the network namespace that gets the bridge.
    address
        The address that namespace gets.
    machine_address
        The address by which this machine takes part.
    """

    def __init__(self, switch: int, address: str, machine_address: str) -> None:
        self._switch = switch
        self._link = f"gpf{random.randrange(16**8):08x}"
        self._ip(f"link add {self._link} type veth peer name machine netns {switch}")
        self._ip(f"addr add {machine_address}/24 dev {self._link}", f"link set {self._link} up")
        self._ip(
            "link set lo up",
            "link add bridge type bridge",
            f"addr add {address}/24 dev bridge",
            "link set bridge up",
            "link set machine master bridge up",
            within=switch,
        )

    def join(self, pid: int, name: str, address: str) -> None:
        """Give the network namespace of a process a link, called ``eth0`` there and `name` at the bridge."""
        self._ip(
            f"link add {name} type veth peer name eth0 netns {pid}",
            f"link set {name} master bridge up",
            within=self._switch,
        )
        self._ip("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up", within=pid)

    def close(self) -> None:
        """Remove this machine's link; it would go with the switch's namespace, but not at once."""
        self._ip(f"link del {self._link}", check=False)

    def _ip(self, *commands: str, within: int | None = None, check: bool = True) -> None:
        enter = ["nsenter", "-t", str(within), "-n"] if within else []
        done = subprocess.run(
            [*enter, "ip", "-batch", "-"],
            input="\n".join(commands) + "\n",
            env={**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if check and done.returncode:
            raise GipfelError(f"The network can't be made: {done.stderr}")
