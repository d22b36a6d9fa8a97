"""Enter a gate, and become a command: ``python -I -m gipfel_cluster.egress PROGRAM ARGUMENTS…``.

The process moves into a network namespace that has only a loopback interface, keeps its process id, and
executes the program. A second process stays outside: it has the listening sockets that were created inside,
and ends with the program. In the namespace every address is local, so that a connection to any address ends
at a socket in the namespace, or is refused by the kernel; a packet socket reports refusals to the process
outside.

Nothing here needs root, a tunnel device or a firewall. A program inside can't leave the namespace, since its
user namespace has no rights over the one outside; nor can it trace the process there.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn

from ..namespaces import SandboxError, die_with_parent, enter_private_network

# Not imported from start.py, which is slow to import and not needed inside. The variable holds a JSON object,
# written by `start.gate_invocation`: the declared gates, the ports of their allow lists, the log's folder
# (empty for none) and the node's name.
_PLAN_VARIABLE, _PROXY_PORT = "GIPFEL_GATE_PLAN", 3128
_FAILED = 125
#: Name of the process outside, in `ps` and in the list of a job's connections.
PROGRAM_NAME = "gipfel-gate"
_READY_S = 60.0
#: Longest pause between two turns of the loop outside, and the interval at which it looks for `closed.json`.
_TICK_S, _LOOK_S = 1.0, 2.0
_BACKLOG = 256
_DNS_PORT = 53
_ETH_ALL = 3
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of asm-generic/socket.h
_OUTGOING = 4  # PACKET_OUTGOING: each packet of a loopback interface is seen twice
_PACKET_BYTES = 128
#: Maximum number of packets that are read after the program's end.
_LAST_PACKETS = 1024
_TCP, _UDP, _ICMP, _ICMP6 = 6, 17, 1, 58


def _make_all_addresses_local() -> None:
    """Add a route of the type ``local`` for all addresses, as ``ip route add local default dev lo`` does.

    Raises
    ------
    OSError
        The kernel refuses it.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            # struct rtmsg: table local, protocol static, scope host, type local; then RTA_OIF.
            route = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 255, 4, 254, 2, 0)
            route += struct.pack("=HHi", 8, 4, socket.if_nametoindex("lo"))
            # RTM_NEWROUTE with NLM_F_REQUEST, NLM_F_ACK and NLM_F_CREATE.
            netlink.send(struct.pack("=IHHII", 16 + len(route), 24, 0x405, 1, 0) + route)
            number = -struct.unpack_from("=i", netlink.recv(4096), 16)[0]
            # If IPv6 is missing on this machine, there is no way out through it either.
            if number and family == socket.AF_INET:
                raise OSError(number, os.strerror(number))


def _sockets_inside(ports: list[int]) -> list[socket.socket]:
    """Return the packet socket, the DNS socket, the proxy's socket, and one for each port, in this order."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_ALL))
    _attach_filter(packets)
    packets.bind(("lo", _ETH_ALL))
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # A DNS answer must come from the address that the query was sent to.
    names.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
    names.bind(("0.0.0.0", _DNS_PORT))  # noqa: S104 - of the namespace
    found = [packets, names]
    for address, port in (("127.0.0.1", _PROXY_PORT), *(("0.0.0.0", each) for each in ports)):  # noqa: S104
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            listener.bind((address, port))
            listener.listen(_BACKLOG)
        found.append(listener)
    return found


def _attach_filter(packets: socket.socket) -> None:
    """Let only packets pass that the kernel may refuse a connection with: TCP resets and all ICMP.

    Packets from 127.0.0.0/8 are dropped; `refused_destination` tells refusals from other ICMP.
    A reset that answers the start of a connection has the flags RST and ACK and the sequence number 0.
    """
    byte, word, byte_x, word_x, header_x, mask, equal, end = 0x30, 0x20, 0x50, 0x40, 0xB1, 0x54, 0x15, 0x06
    # Instructions of classic BPF: their own label, operation, operand, and the labels to jump to if equal and
    # if not; an empty one stands for the next instruction.
    program: list[tuple[str, int, int, str, str]] = [
        ("", byte, 0, "", ""),
        ("", mask, 0xF0, "", ""),
        ("", equal, 0x40, "", "six"),
        ("", byte, 12, "", ""),
        ("", equal, 127, "drop", ""),
        ("", byte, 9, "", ""),
        ("", equal, _ICMP, "keep", ""),
        ("", equal, _TCP, "", "drop"),
        ("", header_x, 0, "", ""),
        ("", byte_x, 13, "", ""),
        ("", equal, 0x14, "", "drop"),
        ("", word_x, 4, "", ""),
        ("", equal, 0, "keep", "drop"),
        ("six", equal, 0x60, "", "drop"),
        ("", byte, 6, "", ""),
        ("", equal, _ICMP6, "keep", ""),
        ("", equal, _TCP, "", "drop"),
        ("", byte, 40 + 13, "", ""),
        ("", equal, 0x14, "", "drop"),
        ("", word, 40 + 4, "", ""),
        ("", equal, 0, "keep", "drop"),
        ("keep", end, _PACKET_BYTES, "", ""),
        ("drop", end, 0, "", ""),
    ]
    labels = {label: index for index, (label, *_) in enumerate(program)}
    code = b""
    for index, (_, operation, operand, yes, no) in enumerate(program):
        jumps = [labels[each] - index - 1 if each else 0 for each in (yes, no)]
        code += struct.pack("=HBBI", operation, *jumps, operand)
    import ctypes  # noqa: PLC0415 - the kernel takes a pointer to the program

    memory = ctypes.create_string_buffer(code)
    packets.setsockopt(
        socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(memory))
    )


def refused_destination(packet: bytes) -> tuple[str, str, int] | None:
    """Return protocol, address and port that the kernel refused with this packet; None for other packets."""
    six = packet[:1] and packet[0] >> 4 == 6
    start = 40 if six else (packet[0] & 15) * 4 if packet else 0
    kind = packet[6] if six and len(packet) > 6 else packet[9] if len(packet) > 9 else 0
    body = packet[start:]
    if kind == _TCP and len(body) >= 4:
        source = packet[8:24] if six else packet[12:16]
        return "tcp", str(ip_address(source)), int.from_bytes(body[:2])
    if kind == (_ICMP6 if six else _ICMP) and body[:2] == (b"\x01\x04" if six else b"\x03\x03"):
        # ICMP repeats the packet that found no open port.
        inner = body[8:]
        start = 40 if six else (inner[0] & 15) * 4 if inner else 0
        address = inner[24:40] if six else inner[16:20]
        protocol = inner[6] if six else inner[9]
        if protocol == _UDP and len(inner) >= start + 4:
            return "udp", str(ip_address(address)), int.from_bytes(inner[start + 2 : start + 4])
    return None


def _serve(plan: dict[str, Any], channel: socket.socket, program: int) -> None:
    """Serve the gate from outside until the program has ended."""
    from ..edf.gate import Gates  # noqa: PLC0415
    from . import inside_ranges  # noqa: PLC0415
    from .log import GateLog, read_closed  # noqa: PLC0415 - the process that becomes the program needs none
    from .proxy import Proxy, search_domains  # noqa: PLC0415

    folder = Path(plan["folder"]) if plan["folder"] else None
    log = GateLog(folder, str(plan["node"]))
    log.open()
    gates = Gates.model_validate(plan["gates"])
    proxy = Proxy(gates, log, inside=inside_ranges(os.environ), domains=search_domains())
    _, handles, _, _ = socket.recv_fds(channel, 1, 128)
    sockets = [socket.socket(fileno=each) for each in handles]
    packets, names, http = sockets[:3]
    poll = select.poll()
    for number in (*handles, program):
        poll.register(number, select.POLLIN)
    by_number = {each.fileno(): each for each in sockets}
    channel.send(b"r")
    channel.close()
    closed, looked = "", 0.0
    while True:
        ready = {number for number, _ in poll.poll(_TICK_S * 1000)}
        if program in ready:
            break
        for each in (by_number[number] for number in ready):
            with suppress(OSError, ValueError, IndexError):
                if each is packets:
                    _note_refusals(packets, log)
                elif each is names:
                    proxy.answer_name(names)
                else:
                    proxy.accept(each, direct=each is not http)
        if folder and not closed and time.monotonic() - looked > _LOOK_S:
            looked, closed = time.monotonic(), read_closed(folder)
            if closed:
                proxy.close(closed)
        log.flush()
    # What was refused just before the end.
    for _ in range(_LAST_PACKETS):
        if packets.fileno() not in {number for number, _ in poll.poll(0)}:
            break
        with suppress(OSError, ValueError, IndexError):
            _note_refusals(packets, log)
    log.flush(at_once=True)


def _note_refusals(packets: socket.socket, log: Any) -> None:
    packet, address = packets.recvfrom(_PACKET_BYTES)
    found = None if address[2] == _OUTGOING else refused_destination(packet)
    if found and not ip_address(found[1]).is_loopback:
        protocol, name, port = found
        log.note(name, port, protocol, allowed=False, reason="only the proxy leads out")


def _start_outside(plan: dict[str, Any]) -> socket.socket:
    """Start the process that stays outside, and return the channel to it."""
    ours, theirs = socket.socketpair()
    program = os.pidfd_open(os.getpid())
    first = os.fork()
    if first:
        theirs.close()
        os.close(program)
        os.waitpid(first, 0)
        return ours
    # Not a child of the program, which may wait for all of its children.
    if os.fork():
        os._exit(0)
    ours.close()
    status = 1
    try:
        os.setsid()
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(ignored, signal.SIG_IGN)
        # The ends of the program's pipes must not stay open here.
        empty = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(empty, descriptor)
        with suppress(OSError):
            Path("/proc/self/comm").write_text(PROGRAM_NAME)
        _serve(plan, theirs, program)
        status = 0
    finally:
        # When this process ends, the program has no network any more.
        os._exit(status)


def main() -> NoReturn:
    """Become the program of the command line, behind the gate of ``GIPFEL_GATE_PLAN``."""
    plan = json.loads(os.environ.pop(_PLAN_VARIABLE))
    parent = os.getppid()
    channel = _start_outside(plan)
    try:
        enter_private_network()
        _make_all_addresses_local()
        sockets = _sockets_inside(plan["ports"])
        socket.send_fds(channel, [b"s"], [each.fileno() for each in sockets])
        channel.settimeout(_READY_S)
        ready = channel.recv(1) == b"r"
    except (OSError, SandboxError) as error:
        sys.stderr.write(f"gipfel: the gate can't be made: {error}\n")
        sys.exit(_FAILED)
    if not ready:
        sys.stderr.write("gipfel: the gate can't be made: its process outside has ended\n")
        sys.exit(_FAILED)
    # Entering the user namespace has reset this setting.
    die_with_parent()
    if os.getppid() != parent:
        sys.exit(_FAILED)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - argv that the caller built with an engine
    except OSError as error:
        sys.stderr.write(f"gipfel: {sys.argv[1]} can't be started: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
