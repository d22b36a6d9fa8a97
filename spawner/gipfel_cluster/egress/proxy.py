"""The part of a gate outside: accepts the connections of programs inside, and connects to allowed hosts.

Its listening sockets were created inside the gate's network namespace and passed to this process, which stays
outside, so that no further process is needed in between. Programs use it as an HTTP proxy (``CONNECT`` and
plain HTTP). Programs that do not support proxies connect to the addresses that :meth:`Proxy.answer_name` gave
them, at the ports of the allow list: in the namespace every address is local, and the address of the accepted
socket is the one that the program connected to.
"""

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from ..edf.gate import Gates, is_address, normal_name
from ..regular_files import read_regular
from . import Ranges, inside_ranges
from .log import Destination, GateLog
from .names import FAILED, MALFORMED, OK, REFUSED, TYPE_AAAA, UNKNOWN, answer, parse_question

Resolve = Callable[[str, int], list[str]]

#: Limits of a request's head: bytes, and seconds without data; `_MOST_HEAD_S` limits all of it.
_HEAD_BYTES = 64 << 10
_HEAD_S = 30.0
_CONNECT_S = 30.0
#: Size of the pipe through which splice(2) moves data.
_PIPE_BYTES = 1 << 20
#: Numbers of connections and DNS queries that are handled concurrently; further ones are closed or dropped.
_MOST_CONNECTIONS, _MOST_QUESTIONS = 512, 32
#: Resolved addresses whose names are remembered, for programs that connect without the proxy.
_MOST_NAMES = 4096
_MOST_HEAD_S = 120.0
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOP_HEADERS = (b"proxy-", b"connection:", b"keep-alive:", b"host:", b"te:", b"upgrade:")
#: IP_PKTINFO of linux/in.h: the address that a datagram was sent to.
_PACKET_INFO = (socket.IPPROTO_IP, 8)
_NOT_ALLOWED = "not on the allow list"


class RefusedError(Exception):
    """A destination that a program must not reach, or that can't be reached; the message is the reason."""


def resolve_outside(name: str, port: int) -> list[str]:
    """Return the addresses of a name according to the resolver of this machine.

    Raises
    ------
    OSError
        The name is unknown.
    """
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def search_domains(path: Path = Path("/etc/resolv.conf")) -> tuple[str, ...]:
    """Return the search domains of this machine's resolver, which are the site's own domains."""
    try:
        lines = read_regular(path, _HEAD_BYTES, follow=True).decode(errors="replace").lower().splitlines()
    except OSError:
        return ()
    words = (line.split() for line in lines)
    listed = (line[1:] for line in words if line[:1] in (["search"], ["domain"]))
    return tuple(each.strip(".") for line in listed for each in line)


class Proxy:
    """Decides on each connection and relays the allowed ones, each in a thread of its own.

    Parameters
    ----------
    inside
        The cluster's address ranges. A name that only a wildcard allows must not resolve to one of them.
    domains
        The site's own domains, whose names may resolve to them.
    """

    def __init__(
        self,
        gates: Gates,
        log: GateLog,
        resolve: Resolve = resolve_outside,
        *,
        inside: Ranges | None = None,
        domains: tuple[str, ...] = (),
    ) -> None:
        self._gates, self._log, self._resolve = gates, log, resolve
        self._inside = inside_ranges({}) if inside is None else inside
        self._domains = tuple(f".{each}" for each in domains if each)
        self._closed = ""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._names: dict[str, str] = {}
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._question_slots = threading.BoundedSemaphore(_MOST_QUESTIONS)

    def close(self, reason: str) -> None:
        """Refuse all destinations from now on, giving this reason, and end the open connections."""
        with self._lock:
            self._closed = reason
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def accept(self, listener: socket.socket, *, direct: bool) -> None:
        """Accept one connection and handle it in a thread; ``direct`` means without a proxy protocol."""
        client, _ = listener.accept()
        if not self._slots.acquire(blocking=False):
            client.close()
            return
        handle = self._handle_direct if direct else self._handle_proxy
        threading.Thread(target=self._guarded, args=(handle, client), daemon=True).start()

    def answer_name(self, server: socket.socket) -> None:
        """Answer one DNS query in a thread."""
        data, ancillary, _, client = server.recvmsg(2048, 128)
        asked = next((each for level, kind, each in ancillary if (level, kind) == _PACKET_INFO), b"")

        def reply(content: bytes) -> None:
            # Sent from the address of the query: a program ignores answers from other addresses.
            source = [(*_PACKET_INFO, bytes(4) + asked[8:12] + bytes(4))] if len(asked) >= 12 else []
            with suppress(OSError):
                server.sendmsg([content], source, 0, client)

        if self._question_slots.acquire(blocking=False):
            threading.Thread(target=self._answer, args=(data, reply), daemon=True).start()

    def _guarded(self, handle: Callable[[socket.socket], None], client: socket.socket) -> None:
        try:
            with client:
                handle(client)
        except (OSError, ValueError, RefusedError):
            pass
        finally:
            self._slots.release()

    def _handle_proxy(self, client: socket.socket) -> None:
        client.settimeout(_HEAD_S)
        try:
            head, rest = _read_head(client)
            method, name, port, forwarded = _parse_head(head)
        except ValueError as error:
            client.sendall(_response("400 Bad Request", f"The gate of this job can't read it: {error}."))
            return
        try:
            server, destination = self._connect(name, port, name)
        except RefusedError as error:
            text = f"The gate of this job refuses {name}:{port}: {error}."
            client.sendall(_response("403 Forbidden", text))
            return
        except OSError as error:
            why = error.strerror or str(error)
            client.sendall(_response("502 Bad Gateway", f"{name}:{port} can't be reached: {why}."))
            return
        except ValueError:
            client.sendall(_response("400 Bad Request", f"{name} is not a name that a host can have."))
            return
        with server:
            if method == b"CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server.sendall(forwarded + rest)
            # The request's head counts as sent data: a path or a header can carry data out as well.
            self._log.add_bytes(destination, sent=len(forwarded) + len(rest))
            self._relay(client, server, destination)

    def _handle_direct(self, client: socket.socket) -> None:
        address, port = client.getsockname()[:2]
        address = normal_name(address)
        try:
            server, destination = self._connect(self._names.get(address, address), port, address)
        except (OSError, RefusedError):
            # The program gets a reset rather than an empty response.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise
        with server:
            self._relay(client, server, destination)

    def _connect(self, name: str, port: int, target: str) -> tuple[socket.socket, Destination]:
        """Connect to a destination; ``target`` is its name, or an address that was resolved for the name."""
        name = normal_name(name)
        reason = self._closed or ("" if self._gates.allows(name, port) else _NOT_ALLOWED)
        if not reason:
            try:
                addresses = self._public(name, self._addresses(target, port))
            except RefusedError as error:
                reason = str(error)
        if reason:
            self._log.note(name, port, "tcp", allowed=False, reason=reason)
            raise RefusedError(reason)
        destination = self._log.note(name, port, "tcp", allowed=True, address=addresses[0])
        server = _first_connection(addresses, port)
        destination.address = normal_name(server.getpeername()[0])
        return server, destination

    def _addresses(self, target: str, port: int) -> list[str]:
        return [normal_name(target)] if is_address(normal_name(target)) else self._resolve(target, port)

    def _public(self, name: str, addresses: Iterable[str]) -> list[str]:
        """Return those of a name's addresses that may be connected to.

        A foreign name server must not give access to this machine, nor to the cluster if only a wildcard
        allows the name.

        Raises
        ------
        RefusedError
            No address is left.
        """
        found, reason = [], "it has no address"
        chosen = self._gates.lists(name) or name.endswith(self._domains)
        for each in map(normal_name, addresses):
            address = ip_address(each.partition("%")[0])
            own = address.is_loopback or address.is_link_local or address.is_unspecified
            if is_address(name):
                found.append(each)
            elif own or address.is_multicast:
                reason = "its name is an address of this machine"
            elif not chosen and any(address in each for each in self._inside):
                reason = "its name is an address of the cluster, and only a wildcard allows it"
            else:
                found.append(each)
        if not found:
            raise RefusedError(reason)
        return found

    def _answer(self, data: bytes, reply: Callable[[bytes], None]) -> None:
        try:
            question = parse_question(data)
        except (ValueError, UnicodeDecodeError):
            reply(data[:2].ljust(2, b"\0") + bytes((0x80, MALFORMED)) + bytes(8))
            self._question_slots.release()
            return
        code: int = REFUSED
        addresses: tuple[str, ...] = ()
        try:
            if question.name.endswith(".arpa"):
                # Reverse lookups are not forwarded; programs make them for their own addresses.
                code = UNKNOWN
                return
            reason = self._closed or ("" if self._gates.allows_name(question.name) else _NOT_ALLOWED)
            # Programs query IPv4 and IPv6 addresses of a name; one line in the log is enough.
            if reason and question.type != TYPE_AAAA:
                self._log.note(question.name, 53, "dns", allowed=False, reason=reason)
            if not reason:
                code, addresses = self._answer_of(question.name)
        finally:
            reply(answer(question, code, addresses))
            self._question_slots.release()

    def _answer_of(self, name: str) -> tuple[int, tuple[str, ...]]:
        try:
            found = tuple(self._public(name, self._resolve(name, 0)))
        except (OSError, UnicodeError, RefusedError):
            return FAILED, ()
        with self._lock:
            for each in found:
                if len(self._names) < _MOST_NAMES or each in self._names:
                    self._names[each] = normal_name(name)
        return OK, found

    def _relay(self, client: socket.socket, server: socket.socket, destination: Destination) -> None:
        """Relay data in both directions until both have ended."""
        for each in (client, server):
            each.settimeout(None)
        with self._lock:
            if self._closed:
                return
            self._open |= {client, server}
        try:
            back = threading.Thread(
                target=_splice,
                args=(server, client, lambda n: self._log.add_bytes(destination, received=n)),
                daemon=True,
            )
            back.start()
            _splice(client, server, lambda n: self._log.add_bytes(destination, sent=n))
            back.join()
        finally:
            with self._lock:
                self._open -= {client, server}


def _splice(source: socket.socket, target: socket.socket, count: Callable[[int], None]) -> None:
    """Move data from source to target without copying it into this process; pass on the end of data."""
    reader, writer = os.pipe()
    try:
        with suppress(OSError):
            import fcntl  # noqa: PLC0415 - beside its one use

            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while moved := os.splice(source.fileno(), writer, _PIPE_BYTES):
            count(moved)
            while moved:
                moved -= os.splice(reader, target.fileno(), moved)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side has disconnected: the other direction must not wait for it.
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(reader)
        os.close(writer)


def _first_connection(addresses: Iterable[str], port: int) -> socket.socket:
    failure = OSError("it has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), _CONNECT_S)
        except OSError as error:
            failure = error
    raise failure


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request, and the data that was already received after it."""
    data = b""
    latest = time.monotonic() + _MOST_HEAD_S
    while b"\r\n\r\n" not in data:
        piece = client.recv(16 << 10)
        if not piece or len(data) + len(piece) > _HEAD_BYTES or time.monotonic() > latest:
            raise ValueError("its head has no end")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _parse_head(head: bytes) -> tuple[bytes, str, int, bytes]:
    """Return method, host and port of a request, and the head to send to the host."""
    first, *headers = head.split(b"\r\n")
    # A server that accepts a single CR or LF as the end of a line would find another Host header in it.
    if any(_CONTROL.search(each) for each in (first, *headers)):
        raise ValueError("its head has a control character")
    try:
        method, target, version = first.split(b" ")
        text = target.decode("ascii")
    except ValueError:
        raise ValueError("the first line is not that of a request") from None
    if not version.startswith(b"HTTP/1.") or not method.isalpha():
        raise ValueError("it is not HTTP/1.1")
    if method == b"CONNECT":
        return method, *_host_and_port(text, 443), b""
    if not text.lower().startswith("http://"):
        raise ValueError("a request to a proxy names http://HOST/…, or uses CONNECT")
    authority, slash, path = text[len("http://") :].partition("/")
    name, port = _host_and_port(authority, 80)
    # Only one request per connection, because a second one could name another host.
    kept = [each for each in headers if not each.lower().startswith(_HOP_HEADERS) and each[:1] not in b" \t"]
    lines = [
        b" ".join((method, (slash + path or "/").encode(), b"HTTP/1.1")),
        b"Host: " + authority.encode(),
        *kept,
        b"Connection: close",
    ]
    return method, name, port, b"\r\n".join(lines) + b"\r\n\r\n"


def _host_and_port(authority: str, default: int) -> tuple[str, int]:
    name, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        name, port = authority, str(default)
    if "@" in name or not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError("it names no host and port")
    return name.strip("[]"), int(port)


def _response(status: str, text: str) -> bytes:
    body = f"gipfel: {text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
