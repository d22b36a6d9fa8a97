"""Interfaces of checks: `Check` and `GroupCheck`, the context that they get, and `check_class`.

A check is a frozen pydantic model that is a `Check` or a `GroupCheck`. `CheckContext` gives it the node:
`Host` for files, programs, sockets and clocks, and a reader of the GPUs. `check_class` finds built-in checks
and those of other packages, by the entry points ``gipfel.checks``.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from gipfel_cluster.definition_files import suggestion
from gipfel_cluster.model import GipfelError

from .children import LocalProbes
from .gpus import Nvml
from .model import Finding, Owner, Scope
from .probing import ProbeSpec

#: Seconds between NTP's epoch (1900) and Unix's.
_NTP_EPOCH = 2_208_988_800
_NTP_PORT = 123
#: Largest number of characters that are read from a file in /proc or /sys.
_MAX_TEXT_CHARACTERS = 4_000_000


@dataclass(frozen=True)
class ProgramResult:
    """Exit status of a program, and its standard output and standard error as one text."""

    status: int
    output: str


class Host:
    """Access of checks to the node that this process runs on, except its GPUs; methods may raise OSError."""

    def text(self, path: str) -> str:
        """Return the content of a small file."""
        with Path(path).open(errors="replace") as file:
            return file.read(_MAX_TEXT_CHARACTERS)

    def run(self, argv: Sequence[str], seconds: float) -> ProgramResult:
        """Run a program; raise FileNotFoundError if it is missing, TimeoutError if it doesn't end in time."""
        try:
            done = subprocess.run(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{argv[0]} did not end within {seconds:g} s.") from error
        return ProgramResult(done.returncode, done.stdout[:_MAX_TEXT_CHARACTERS].decode(errors="replace"))

    def affinity(self) -> frozenset[int]:
        """Return the CPUs that this process may run on."""
        return frozenset(os.sched_getaffinity(0))

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a host name."""
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})

    def connect(self, host: str, port: int, seconds: float) -> None:
        """Open a TCP connection and close it."""
        socket.create_connection((host, port), timeout=seconds).close()

    def clock_offset(self, server: str, seconds: float) -> float:
        """Return the seconds by which an NTP server's clock is ahead, without half of the round trip."""
        name, _, port = server.partition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(seconds)
            sent = time.time()
            link.sendto(b"\x1b" + bytes(47), (name, int(port) if port else _NTP_PORT))
            answer = link.recv(512)
            received = time.time()
        if len(answer) < 48:
            raise OSError(f"{server} sent a response that is not NTP.")
        seconds_since_1900, fraction = struct.unpack("!II", answer[40:48])
        return float(seconds_since_1900 - _NTP_EPOCH + fraction / 2**32 - (sent + received) / 2)


GROUP = "gipfel.checks"
_LISTING = "`gipfel vet --list` lists the checks."
#: Type to module and class. Listed here because a source tree or a mounted runtime has no entry points.
BUILT_IN: dict[str, str] = {
    "gpu_count": "gpus:GpuCount",
    "gpu_memory": "gpus:GpuMemory",
    "gpu_processes": "gpus:GpuProcesses",
    "compute_mode": "gpus:ComputeMode",
    "temperature": "thermal:Temperature",
    "clocks": "thermal:Clocks",
    "power_limit": "thermal:PowerLimit",
    "ecc": "gpu_errors:Ecc",
    "remapped_rows": "gpu_errors:RemappedRows",
    "xid": "gpu_errors:Xid",
    "nvlink": "gpu_errors:NvLinks",
    "pcie": "gpu_errors:Pcie",
    "memory_bandwidth": "throughput:MemoryBandwidth",
    "matmul": "throughput:Matmul",
    "host_copy": "throughput:HostCopy",
    "libraries": "container:Libraries",
    "affinity": "host:Affinity",
    "host_memory": "host:HostMemory",
    "shared_memory": "host:SharedMemory",
    "environment": "container:EnvironmentValues",
    "network_stack": "container:NetworkStack",
    "mounts": "storage:Mounts",
    "quota": "storage:Quota",
    "storage_write": "storage:StorageWrite",
    "storage_read": "storage:StorageRead",
    "dns": "host:Dns",
    "clock_offset": "host:ClockOffset",
    "internet": "host:Internet",
    "container": "container:Container",
    "collective": "throughput:Collective",
}


@dataclass(frozen=True)
class CheckContext:
    """Node that a check runs on; all access to the outside is injected here.

    Parameters
    ----------
    node
        This node's name.
    environment
        The environment variables of the user's processes in the container.
    host
        Access to files, programs, sockets and clocks of the node.
    gpus
        Reader of the GPUs: NVML, or a fake.
    probes
        Runs probes with the image's Python.
    expected_gpus
        Number of GPUs that the job has on this node; None if it is unknown.
    time_limit_s
        Seconds after which the check is stopped.
    """

    node: str
    environment: Mapping[str, str]
    host: Host
    gpus: Nvml
    probes: LocalProbes
    expected_gpus: int | None = None
    time_limit_s: float = 60.0


@runtime_checkable
class Check(Protocol):
    """Check of a GPU or a node: a frozen pydantic model whose fields are its parameters.

    A check need not catch errors: `run_check` turns exceptions, `MissingRequirement` and exceeded time limits
    into verdicts that do not pass.
    """

    scope: ClassVar[Scope]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return the check with these parameters; provided by pydantic."""

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding per subject; an empty list becomes a verdict that does not pass."""


@runtime_checkable
class GroupCheck(Protocol):
    """Check of a node's GPUs, a pair of nodes, or all nodes: a probe on a group of ranks."""

    scope: ClassVar[Scope]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return the check with these parameters; provided by pydantic."""

    def probe(self, time_limit_s: float) -> ProbeSpec:
        """Return the probe that each rank of the group runs."""


class MissingRequirement(GipfelError):  # noqa: N818 - not an error of the program
    """Requirement of a check that this node lacks: a tool, a module, a GPU.

    Parameters
    ----------
    owner
        Owner of the fault; None if the check does not know.
    """

    def __init__(self, problem: str, fix: str = "", owner: Owner | None = None) -> None:
        super().__init__(problem, fix)
        self.owner = owner


@contextlib.contextmanager
def required(problem: str, fix: str) -> Iterator[None]:
    """Raise `MissingRequirement` instead of an OSError, whose reason is added to the problem."""
    try:
        yield
    except OSError as error:
        raise MissingRequirement(f"{problem}: {error.strerror or error}.", fix) from error


class UnknownCheck(GipfelError):  # noqa: N818 - a mistake in a protocol, not an error of the program
    """No check has this type."""


def check_types() -> tuple[str, ...]:
    """Return the types of all known checks, sorted."""
    return tuple(sorted({*BUILT_IN, *_installed()}))


def check_class(type_: str) -> type[Check] | type[GroupCheck]:
    """Return the class of a check type.

    Raises
    ------
    UnknownCheck
        There is no such type, or the check of another package can't be imported.
    """
    if type_ in BUILT_IN:
        module, _, name = BUILT_IN[type_].partition(":")
        loaded: Any = getattr(importlib.import_module(f"{__package__}.checks.{module}"), name)
        return loaded  # type: ignore[no-any-return]
    point = _installed().get(type_)
    if point is None:
        fix = suggestion(type_, check_types()) or _LISTING
        raise UnknownCheck(f"There is no check of type {type_[:80]!r}.", fix)
    try:
        loaded = point.load()
    # Importing another package may raise anything, also SystemExit, which would end the run.
    except (Exception, SystemExit) as error:
        problem = f"The check {type_[:80]!r} of {point.value} can't be imported: {error}."
        raise UnknownCheck(problem, _LISTING) from error
    if not isinstance(getattr(loaded, "scope", None), Scope) or not hasattr(loaded, "model_validate"):
        raise UnknownCheck(f"{point.value} is not a check: it lacks a scope or parameters.", _LISTING)
    if not hasattr(loaded, "run") and not hasattr(loaded, "probe"):
        raise UnknownCheck(f"{point.value} is not a check: it has neither run() nor probe().", _LISTING)
    return loaded  # type: ignore[no-any-return]


@functools.cache
def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point for point in points if point.name not in BUILT_IN}
