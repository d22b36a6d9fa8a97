"""Which interface of this node has an address, and a port that nobody listens on."""

import fcntl
import socket
import struct
from collections.abc import Iterator

_SIOCGIFADDR = 0x8915


def interface_of(address: str) -> str:
    """The name of the interface with this IPv4 address; empty where there is none."""
    return next((name for name, own in interfaces() if own == address), "")


def interfaces() -> Iterator[tuple[str, str]]:
    """Each interface of this node and its first IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            yield name, socket.inet_ntoa(answer[20:24])


def free_port() -> int:
    """A port that nobody listens on now; it is not held."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:
        asked.bind(("", 0))
        return int(asked.getsockname()[1])
