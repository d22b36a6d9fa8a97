"""Checks of the host: main memory, shared memory, CPU affinity, DNS, clock offset, internet access."""

import re
import time
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from gipfel_cluster.model import OneLine, pluralize

from ...telemetry.ranks import cpu_list
from ..check import CheckContext, MissingRequirement, required
from ..gpus import GpuReading, ReadingError
from ..model import Finding, Verdict, degraded, failed, passed
from ..threshold import Quantity, with_unit
from .gpus import ANOTHER_NODE, BaseCheck
from .storage import Quota

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


class HostMemory(BaseCheck):
    """Check that enough main memory is available, and little swap is in use.

    Parameters
    ----------
    min_available
        Required share of available memory.
    most_swapped
        Allowed bytes of swap in use.
    """

    time_limit_s: ClassVar[float] = 10.0

    min_available: Annotated[Quantity, Field(ge=0, le=1)] = 0.5
    most_swapped: Annotated[Quantity, Field(ge=0)] = 2.0**30

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        fields = {
            name: int(value) * 1024 for name, value in _FIELD.findall(context.host.text("/proc/meminfo"))
        }
        total, available = fields.get("MemTotal", 0), fields.get("MemAvailable")
        if not total or available is None:
            raise MissingRequirement(
                "/proc/meminfo does not report the available memory.", "Check whether /proc is mounted."
            )
        share = available / total
        text = f"{with_unit(available, 'B')} of {with_unit(total, 'B')} are available"
        fix = "Other processes use this node's memory. Use another node."
        if share < self.min_available:
            return [failed(f"{text}, less than {self.min_available:.0%}.", fix, share)]
        swapped = fields.get("SwapTotal", 0) - fields.get("SwapFree", 0)
        if swapped > self.most_swapped:
            return [failed(f"{with_unit(swapped, 'B')} are swapped out.", fix, share)]
        return [passed(f"{text}.", share)]


class Affinity(BaseCheck):
    """Check that the job may use enough CPUs, some of them close to each GPU.

    Parameters
    ----------
    cpus_per_gpu
        Required number of CPUs for each GPU, or in total if there is no GPU.
    """

    cpus_per_gpu: Annotated[int, Field(ge=1)] = 1

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        cpus = context.host.affinity()
        try:
            gpus: Sequence[GpuReading] = context.gpus.read() if context.expected_gpus != 0 else ()
        except ReadingError:
            # Missing GPUs are reported by other checks.
            gpus = ()
        required = self.cpus_per_gpu * max(1, len(gpus))
        if len(cpus) < required:
            fix = "Request more CPUs (--cpus-per-task, --cpus-per-gpu)."
            reason = f"{pluralize(len(cpus), 'CPU')} may be used, {required} are needed."
            return [failed(reason, fix, float(len(cpus)))]
        near_cpus = {f"GPU {gpu.index}": self._cpus_near(context, gpu) for gpu in gpus}
        far = [gpu for gpu, near in near_cpus.items() if near and not near & cpus]
        if far:
            fix = "Bind tasks to the CPUs near their GPUs (--gpu-bind, --cpu-bind, or numactl)."
            reason = f"No CPU near {', '.join(far)} may be used."
            return [degraded(reason, fix, float(len(cpus)))]
        near_gpus = ", near every GPU" if gpus else ""
        return [passed(f"{pluralize(len(cpus), 'CPU')} may be used{near_gpus}.", float(len(cpus)))]

    def _cpus_near(self, context: CheckContext, gpu: GpuReading) -> frozenset[int]:
        # NVML writes a PCI domain with eight digits, the kernel with four.
        bus = gpu.bus_id.lower()
        bus = bus[4:] if len(bus) == 16 else bus
        try:
            return cpu_list(context.host.text(f"/sys/bus/pci/devices/{bus}/local_cpulist"))
        except (OSError, ValueError):
            # A container may hide this file; then the GPU is not judged.
            return frozenset()


class SharedMemory(Quota):
    """Check that shared memory is free and can be written: a memory limit may be below its size.

    Parameters
    ----------
    min_free
        Required free bytes.
    write
        Bytes that the check writes and deletes.
    """

    time_limit_s: ClassVar[float] = 30.0
    fix: ClassVar[str] = (
        "Delete files of earlier jobs there, use another node, or give the container more shared memory."
    )
    slow_verdict: ClassVar[Verdict] = Verdict.FAIL

    folder: OneLine = "/dev/shm"  # noqa: S108 - it is the subject
    min_free: Annotated[Quantity, Field(ge=0)] = 2.0**30
    min_inodes: Annotated[int, Field(ge=0)] = 0
    write: Annotated[Quantity, Field(ge=4096, le=2**36)] = 64.0 * 2**20


_STATUS_LIMIT_S = 5.0


class Dns(BaseCheck):
    """Check that each host name resolves within the limit.

    Parameters
    ----------
    names
        Host names to resolve; when empty, the node's own name, which torchrun and gloo need.
    at_most
        Allowed seconds for one name.
    """

    names: tuple[OneLine, ...] = ()
    at_most: Annotated[Quantity, Field(gt=0)] = 2.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        slowest = 0.0
        for name in self.names or (context.node,):
            start = time.monotonic()
            try:
                addresses = context.host.resolve(name)
            except (OSError, UnicodeError) as error:
                fix = "Check /etc/resolv.conf and /etc/hosts in the container."
                reason = f"{name} can't be resolved: {getattr(error, 'strerror', None) or error}."
                return [failed(reason, fix)]
            slowest = max(slowest, time.monotonic() - start)
            if not addresses:
                return [failed(f"{name} has no address.", "Check /etc/hosts in the container.")]
        if slowest > self.at_most:
            fix = "Tell the operators: a name server of this node does not respond."
            return [failed(f"Resolving a name took {slowest:.1f} s.", fix, slowest, "s")]
        return [passed(f"{len(self.names) or 1} name(s) resolved.", slowest, "s")]


class ClockOffset(BaseCheck):
    """Check that the clock is close to an NTP server's, or to that of the node's time service.

    Parameters
    ----------
    server
        NTP server as host or host:port; if empty, ``chronyc`` or ``timedatectl`` is run.
    at_most
        Allowed seconds in either direction, because logs and traces of ranks are compared.
    """

    time_limit_s: ClassVar[float] = 20.0

    server: OneLine = ""
    at_most: Annotated[Quantity, Field(gt=0)] = 1.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        if not self.server:
            return [self._by_time_service(context)]
        fix = "Check whether the server can be reached from here, or leave 'server' empty."
        with required(f"{self.server} does not report the time", fix):
            offset = context.host.clock_offset(self.server, _STATUS_LIMIT_S)
        return [self._judge_offset(abs(offset), f"compared with {self.server}")]

    def _by_time_service(self, context: CheckContext) -> Finding:
        try:
            ran = context.host.run(["chronyc", "-c", "tracking"], _STATUS_LIMIT_S)
            fields = ran.output.strip().split(",")
            if ran.status == 0 and len(fields) > 4:
                return self._judge_offset(abs(float(fields[4])), "according to chrony")
        except (OSError, ValueError):
            # chronyc is missing or has another version, so try timedatectl.
            pass
        argv = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"]
        with required("Neither chronyc nor timedatectl can be run here", "Set 'server' in the protocol."):
            ran = context.host.run(argv, _STATUS_LIMIT_S)
        if ran.status:
            raise MissingRequirement("timedatectl does not work here.", "Set 'server' in the protocol.")
        if ran.output.strip() != "yes":
            return failed("The clock is not synchronized.", ANOTHER_NODE)
        return passed("The clock is synchronized, according to timedatectl.")

    def _judge_offset(self, offset: float, reference: str) -> Finding:
        text = f"The clock is {offset:.3f} s off, {reference}."
        if offset > self.at_most:
            return failed(text, ANOTHER_NODE, offset, "s")
        return passed(text, offset, "s")


class Internet(BaseCheck):
    """Check that a TCP connection to a host can be opened within the limit.

    Parameters
    ----------
    host, port
        Host and port to connect to.
    seconds
        Seconds to wait.
    """

    host: Annotated[OneLine, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65_535)] = 443
    seconds: Annotated[Quantity, Field(gt=0, le=600)] = 3.0

    def run(self, context: CheckContext) -> Sequence[Finding]:
        """Return one finding for the node."""
        start = time.monotonic()
        try:
            context.host.connect(self.host, self.port, self.seconds)
        except (OSError, UnicodeError) as error:
            fix = "Check whether compute nodes can reach it, and whether a proxy must be set."
            cause = getattr(error, "strerror", None) or error
            return [failed(f"{self.host}:{self.port} can't be reached: {cause}.", fix)]
        took = time.monotonic() - start
        return [passed(f"{self.host}:{self.port} responds in {took:.2f} s.", took, "s")]
