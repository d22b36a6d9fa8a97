"""The source ``auto``: NVML, with DCGM's profiling where no GPU has GPM (A100 and older), else AMD SMI."""

from contextlib import suppress
from dataclasses import replace

from ..events import Event
from ..sample import Device, Sample, SourceError
from . import AbsentSource, Source, SourceRequest
from .dcgm import DcgmSource
from .nvml import NvmlSource

#: Seconds until DCGM is tried again after an error; the pause doubles up to the maximum.
_FIRST_PAUSE_S = 5.0
_MAX_PAUSE_S = 60.0


def open_auto(request: SourceRequest) -> Source:
    """Open ``auto``: the job's NVIDIA or AMD GPUs, or a source without devices."""
    with suppress(SourceError):
        return with_dcgm(NvmlSource(request), request)
    from .amd import AmdSource  # noqa: PLC0415 - needed only without NVIDIA GPUs

    with suppress(SourceError):
        return AmdSource(request)
    return AbsentSource("nvml")


class NvmlWithDcgm(Source):
    """NVML's metrics combined with DCGM's profiling; only NVML's while the DCGM daemon does not respond."""

    def __init__(self, nvml: NvmlSource, dcgm: DcgmSource, request: SourceRequest) -> None:
        self.name = f"{nvml.name}+{dcgm.name}"
        self.devices: tuple[Device, ...] = nvml.devices
        self._nvml = nvml
        self._dcgm = dcgm
        self._clock = request.clock
        self._node = request.environment.get("GIPFEL_NODE", "")
        self._events: list[Event] = []
        self._pause = _FIRST_PAUSE_S
        self._retry_ns: int | None = None

    def read(self) -> list[Sample]:
        """Return one sample per GPU, with the time of NVML's reading."""
        samples = self._nvml.read()
        profiled = {sample.device: sample.values for sample in self._profiled()}
        return [replace(each, values=_merged(each.values, profiled.get(each.device, {}))) for each in samples]

    def events(self) -> list[Event]:
        """Return NVML's events, and events of the DCGM daemon's availability."""
        found, self._events = [*self._events, *self._nvml.events()], []
        return found

    def processes(self) -> list[tuple[int, str]]:
        """Return the compute processes on the job's GPUs that the driver shows to this user."""
        return self._nvml.processes()

    def close(self) -> None:
        """Stop ``dcgmi`` and shut down NVML."""
        try:
            self._dcgm.close()
        finally:
            self._nvml.close()

    def _profiled(self) -> list[Sample]:
        now_ns = self._clock.monotonic_ns()
        if self._retry_ns is not None and now_ns < self._retry_ns:
            return []
        try:
            found = self._dcgm.read()
        except SourceError as error:
            if self._retry_ns is None:
                self._note("source_lost", f"dcgm can't be read, and NVML continues alone: {error.problem}")
            self._retry_ns = now_ns + int(self._pause * 1e9)
            self._pause = min(2 * self._pause, _MAX_PAUSE_S)
            return []
        # After its restart DCGM has no values at first, so wait for one before reporting its recovery.
        if self._retry_ns is not None and any(v is not None for s in found for v in s.values.values()):
            self._retry_ns, self._pause = None, _FIRST_PAUSE_S
            self._note("source_back", "dcgm can be read again.")
        return found

    def _note(self, kind: str, message: str) -> None:
        self._events.append(Event(self._clock.time_ns(), self._node, kind, "", message))


def with_dcgm(nvml: NvmlSource, request: SourceRequest) -> NvmlSource | NvmlWithDcgm:
    """Return NVML combined with the node's DCGM where no GPU has GPM and DCGM knows them; else NVML."""
    if nvml.fine:
        return nvml
    try:
        dcgm = DcgmSource(request)
    except SourceError:
        return nvml
    if not {device.uuid for device in dcgm.devices} & {device.uuid for device in nvml.devices}:
        dcgm.close()
        return nvml
    return NvmlWithDcgm(nvml, dcgm, request)


def _merged(values: dict[str, float | None], others: dict[str, float | None]) -> dict[str, float | None]:
    additional = {
        name: value for name, value in others.items() if value is not None and values.get(name) is None
    }
    return {**values, **additional}
