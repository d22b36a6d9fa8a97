"""TCP and UDP sockets of network namespaces, from the kernel's socket diagnostics, without privileges.

A dump by netlink (sock_diag(7), ``struct inet_diag_msg`` of linux/inet_diag.h) costs some milliseconds of
CPU time for a thousand sockets and has the byte counts of each TCP connection (``tcpi_bytes_acked`` and
``tcpi_bytes_received`` of ``struct tcp_info``). A dump contains only sockets of this process's namespace;
those of other namespaces are read from ``/proc/PID/net``, which has no byte counts.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

Address = IPv4Address | IPv6Address

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP_REQUEST = 0x301
_MESSAGE_ERROR, _MESSAGE_DONE = 2, 3
_ATTRIBUTE_INFO = 2
_INFO_REQUESTED = 1 << (_ATTRIBUTE_INFO - 1)
#: Multicast groups that report destroyed sockets: TCP and UDP, IPv4 and IPv6.
_DESTROYED = 0b1111
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_MESSAGE_BYTES = 72
#: Offset of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in ``struct tcp_info`` since Linux 4.1.
_INFO_BYTES_OFFSET = 120
_LISTEN, _CONNECTED = 10, 1
#: TCP states of connections with a peer: all except closed, listening, and those without an answer yet.
_STATES = frozenset((1, 2, 4, 5, 6, 8, 9, 11))
_MOST_SOCKETS = 20_000
_PROC_BYTES = 4 << 20
_RECEIVE_BYTES = 1 << 18
_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Socket:
    """One socket.

    Parameters
    ----------
    protocol
        ``tcp`` or ``udp``.
    remote, remote_port
        Address and port of the peer; port 0 without a peer.
    inode
        Inode by which ``/proc/PID/fd`` lists the socket; 0 after its process closed it.
    cookie
        Number that is unique among all sockets until the next boot; 0 if unknown.
    sent, received
        Bytes that the peer acknowledged, and bytes received from it; None if they aren't counted.
    """

    protocol: str
    local: Address
    local_port: int
    remote: Address
    remote_port: int
    uid: int
    inode: int
    cookie: int
    listening: bool
    sent: int | None = None
    received: int | None = None


class SocketTable:
    """Reader of the sockets of this process's network namespace."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None

    def read(self) -> list[Socket]:
        """Return listening and connected sockets, at most 20 000.

        Raises
        ------
        OSError
            The kernel refuses socket diagnostics, or does not support them.
        """
        if self._netlink is None:
            self._netlink = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
            )
            self._netlink.settimeout(_TIMEOUT_S)
        found: list[Socket] = []
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
                    found += self._dump(self._netlink, family, protocol)
        except OSError:
            # The rest of an interrupted dump must not be taken for the answer to the next request.
            self.close()
            raise
        return found[:_MOST_SOCKETS]

    def close(self) -> None:
        """Close the netlink socket; a later :meth:`read` opens it again."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    @staticmethod
    def _dump(netlink: socket.socket, family: int, protocol: int) -> list[Socket]:
        info = _INFO_REQUESTED if protocol == socket.IPPROTO_TCP else 0
        request = _REQUEST.pack(family, protocol, info, 0, 0xFFFFFFFF)
        netlink.send(
            _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP_REQUEST, 1, 0) + request
        )
        found: list[Socket] = []
        while True:
            for kind, content in _messages(netlink.recv(_RECEIVE_BYTES)):
                if kind == _MESSAGE_DONE:
                    return found
                if kind == _MESSAGE_ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    raise OSError(number, os.strerror(number))
                each = _parse(content, "tcp" if protocol == socket.IPPROTO_TCP else "udp")
                if each is not None:
                    found.append(each)


class ClosedSockets:
    """Listener for the final byte counts of TCP connections that end, in this process's namespace.

    With them, all bytes of a connection that ends between two dumps are counted. The kernel's report has no
    user and inode; the cookie identifies the socket in the previous dump.
    """

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        with suppress(OSError):
            netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
            netlink.settimeout(0)
            try:
                netlink.bind((0, _DESTROYED))
            except OSError:
                netlink.close()
                raise
            self._netlink = netlink

    def read(self) -> list[Socket]:
        """Return the TCP connections that ended since the last call; empty if the kernel reports none."""
        found: list[Socket] = []
        if self._netlink is None:
            return found
        # The kernel drops reports that don't fit into the buffer, and then returns ENOBUFS once.
        with suppress(BlockingIOError, OSError):
            while len(found) < _MOST_SOCKETS:
                for kind, content in _messages(self._netlink.recv(_RECEIVE_BYTES)):
                    each = _parse(content, "tcp", ended=True) if kind == _SOCK_DIAG_BY_FAMILY else None
                    if each is not None and each.sent is not None:
                        found.append(each)
        return found

    def close(self) -> None:
        """Close the netlink socket."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None


def has_only_loopback(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether the network namespace of a process has a loopback interface and no other.

    Raises
    ------
    OSError
        The process has ended or belongs to another user.
    """
    with (proc / str(pid) / "net" / "dev").open("rb") as file:
        lines = file.read(_PROC_BYTES).decode("ascii", errors="replace").splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines} <= {"lo"}


def read_process_sockets(pid: int, proc: Path = Path("/proc")) -> list[Socket]:
    """Return the sockets of the network namespace of a process, without byte counts.

    Raises
    ------
    OSError
        The process has ended or belongs to another user.
    """
    found: list[Socket] = []
    for name, protocol in (("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp")):
        with (proc / str(pid) / "net" / name).open("rb") as file:
            lines = file.read(_PROC_BYTES).decode("ascii", errors="replace").splitlines()[1:]
        for line in lines:
            with suppress(ValueError, IndexError):
                fields = line.split()
                each = _checked(
                    protocol,
                    int(fields[3], 16),
                    _proc_address(fields[1]),
                    _proc_address(fields[2]),
                    uid=int(fields[7]),
                    inode=int(fields[9]),
                )
                if each is not None:
                    found.append(each)
    return found[:_MOST_SOCKETS]


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _parse(content: bytes, protocol: str, *, ended: bool = False) -> Socket | None:
    if len(content) < _MESSAGE_BYTES:
        return None
    family, state = content[0], content[1]
    local_port, remote_port = struct.unpack_from("!HH", content, 4)
    bytes_of_address = 4 if family == socket.AF_INET else 16
    local, remote = content[8 : 8 + bytes_of_address], content[24 : 24 + bytes_of_address]
    cookie = int.from_bytes(content[44:52], "little")
    uid, inode = struct.unpack_from("=II", content, 64)
    sent, received = _byte_counts(content)
    return _checked(
        protocol,
        _CONNECTED if ended else state,
        (_plain(ip_address(local)), local_port),
        (_plain(ip_address(remote)), remote_port),
        uid=uid,
        inode=inode,
        cookie=cookie,
        sent=sent,
        received=received,
    )


def _byte_counts(content: bytes) -> tuple[int | None, int | None]:
    offset = _MESSAGE_BYTES
    while offset + 4 <= len(content):
        length, kind = struct.unpack_from("=HH", content, offset)
        if length < 4:
            break
        if kind == _ATTRIBUTE_INFO and length >= 4 + _INFO_BYTES_OFFSET + 16:
            return struct.unpack_from("=QQ", content, offset + 4 + _INFO_BYTES_OFFSET)
        offset += (length + 3) & ~3
    return None, None


def _checked(
    protocol: str,
    state: int,
    local: tuple[Address, int],
    remote: tuple[Address, int],
    *,
    uid: int,
    inode: int,
    cookie: int = 0,
    sent: int | None = None,
    received: int | None = None,
) -> Socket | None:
    """Return the socket if it listens or has a peer; else None."""
    listening = protocol == "tcp" and state == _LISTEN
    connected = remote[1] != 0 and (state in _STATES if protocol == "tcp" else state == _CONNECTED)
    if not listening and not connected:
        return None
    return Socket(protocol, *local, *remote, uid, inode, cookie, listening, sent, received)


def _proc_address(text: str) -> tuple[Address, int]:
    digits, _, port = text.partition(":")
    # Each group of 32 bits is printed as a number of the machine's byte order.
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    return _plain(ip_address(b"".join(words))), int(port, 16)


def _plain(address: Address) -> Address:
    """Return an address, or the IPv4 address that is mapped into it."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
