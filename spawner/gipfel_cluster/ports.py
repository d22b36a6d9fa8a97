"""Port ranges that a server may use, and listening sockets on free ports."""

import errno
import random
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from .model import Frozen, GipfelError

#: Environment variable with the range of ports that a server may use.
PORTS_VARIABLE = "GIPFEL_SERVER_PORTS"

_RANGE = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?")
_ALL_ADDRESSES = frozenset(("", "*", "0.0.0.0", "::"))  # noqa: S104 - recognized, not bound
# The range of the kernel's ephemeral ports: see ip(7).
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_Port = Annotated[int, Field(ge=1024, le=65535)]


class PortRange(Frozen):
    """Ports from ``first`` to ``last``, both included; by default all ports that a user may bind."""

    first: _Port = 1024
    last: _Port = 65535

    @model_validator(mode="after")
    def _holds_a_port(self) -> "PortRange":
        if self.first > self.last:
            raise ValueError("the first port is above the last")
        return self

    @classmethod
    def parse(cls, text: str) -> "PortRange | None":
        """Parse a range such as ``8400-8499`` or ``8400``; None for an empty text, which means any port.

        Raises
        ------
        GipfelError
            The text is not a valid range of ports from 1024 to 65535.
        """
        if not text.strip():
            return None
        match = _RANGE.fullmatch(text)
        with suppress(ValueError):
            if match:
                return cls(first=int(match[1]), last=int(match[2] or match[1]))
        raise GipfelError(
            f"{text[:40]!r} is not a valid range of ports.", "Give it as 8400-8499, between 1024 and 65535."
        )

    def __contains__(self, port: object) -> bool:
        return isinstance(port, int) and self.first <= port <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def shuffled(self) -> Iterator[int]:
        """Yield every port once, from a random one on, so that simultaneous starts rarely collide."""
        count = self.last - self.first + 1
        start = random.randrange(count)  # noqa: S311 - spreads, hides nothing
        return (self.first + (start + offset) % count for offset in range(count))


def bind_port(address: str, ports: PortRange | None) -> socket.socket:
    """Return a listening socket on an address of this machine: all for ``0.0.0.0``, ``*``, ``::`` and ``""``.

    `ports` None means any free port. The socket stays bound, since another process could take a port that is
    chosen, closed and bound again.

    Raises
    ------
    GipfelError
        Every port of the range is in use, or the address can't be bound.
    """
    for port in ports.shuffled() if ports else (0,):
        try:
            return _listen(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise GipfelError(
                    f"No port can be bound on {address or 'this node'}: {error.strerror or error}."
                ) from error
    raise GipfelError(
        f"All ports {ports} of {socket.gethostname()} are in use.",
        "Stop another server on this node or ask the hub's administrators for more ports.",
    )


def free_ports(address: str, count: int = 1) -> list[int]:
    """Return `count` different free ports for servers that bind them later.

    They are below the kernel's ephemeral range where this leaves enough ports, so that neither an outgoing
    connection nor a server that binds port 0 gets one of them in the meantime.

    Raises
    ------
    GipfelError
        As for `bind_port`.
    """
    try:
        first = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    ports = PortRange(first=10000, last=first - 1) if first > 12000 else None
    with ExitStack() as held:
        return [held.enter_context(bind_port(address, ports)).getsockname()[1] for _ in range(count)]


def _listen(address: str, port: int) -> socket.socket:
    if address in _ALL_ADDRESSES:
        # One socket for both families, so that IPv4 and IPv6 get the same port.
        both = socket.has_dualstack_ipv6()
        family, host = (socket.AF_INET6, "::") if both else (socket.AF_INET, "0.0.0.0")  # noqa: S104 - for the hub
    else:
        family, _, _, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        both, host = False, str(resolved[0])
    # If two sockets bind a port at the same time, one of them fails to listen.
    listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
    listener.settimeout(0)
    return listener
