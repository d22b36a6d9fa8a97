"""Node outside its GPUs: files, programs, names, sockets and clocks, as checks use them."""

import os
import pwd
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Seconds between NTP's epoch (1900) and Unix's.
_NTP_EPOCH = 2_208_988_800
_NTP_PORT = 123
#: A file of /proc or /sys that is asked for is never longer.
_LARGEST_TEXT = 4_000_000


@dataclass(frozen=True)
class Ran:
    """Exit status of a program, and its standard output and error together."""

    status: int
    output: str


class Host(Protocol):
    """Node as checks use it; every method may raise OSError."""

    def text(self, path: str) -> str:
        """Return the content of a small file."""

    def names(self, folder: str) -> list[str]:
        """Return the entries of a directory, sorted."""

    def run(self, argv: Sequence[str], seconds: float) -> Ran:
        """Run a program; raise FileNotFoundError where it is missing, TimeoutError where it doesn't end."""

    def affinity(self) -> frozenset[int]:
        """Return the CPUs that this process may run on."""

    def user(self) -> str:
        """Return the name of this process's user."""

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a host name."""

    def connect(self, host: str, port: int, seconds: float) -> None:
        """Open a TCP connection and close it."""

    def clock_offset(self, server: str, seconds: float) -> float:
        """Return the seconds by which an NTP server's clock is ahead of this node's."""


class LocalHost:
    """Machine that this process runs on."""

    def text(self, path: str) -> str:
        """Return the content of a small file."""
        with Path(path).open(errors="replace") as file:
            return file.read(_LARGEST_TEXT)

    def names(self, folder: str) -> list[str]:
        """Return the entries of a directory, sorted."""
        return sorted(each.name for each in Path(folder).iterdir())

    def run(self, argv: Sequence[str], seconds: float) -> Ran:
        """Run a program of this node."""
        try:
            done = subprocess.run(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{argv[0]} did not end within {seconds:g} s.") from error
        return Ran(done.returncode, done.stdout[:_LARGEST_TEXT].decode(errors="replace"))

    def affinity(self) -> frozenset[int]:
        """Return the CPUs that this process may run on."""
        return frozenset(os.sched_getaffinity(0))

    def user(self) -> str:
        """Return the name of this process's user; KeyError where the container has no entry."""
        return pwd.getpwuid(os.getuid()).pw_name

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a host name."""
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})

    def connect(self, host: str, port: int, seconds: float) -> None:
        """Open a TCP connection and close it."""
        socket.create_connection((host, port), timeout=seconds).close()

    def clock_offset(self, server: str, seconds: float) -> float:
        """Query an NTP server once; half of the round trip is subtracted."""
        name, _, port = server.partition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(seconds)
            sent = time.time()
            link.sendto(b"\x1b" + bytes(47), (name, int(port) if port else _NTP_PORT))
            answer = link.recv(512)
            received = time.time()
        if len(answer) < 48:
            raise OSError(f"{server} gave an answer that is not NTP.")
        whole, part = struct.unpack("!II", answer[40:48])
        return float(whole - _NTP_EPOCH + part / 2**32 - (sent + received) / 2)
