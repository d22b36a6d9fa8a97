"""``auto``: NVML, with DCGM's profiling where no GPU has GPM (A100 and older), else AMD SMI."""

from dataclasses import replace

from ..events import Event
from ..sample import Device, Sample, SourceError
from . import AbsentSource, Source, SourceRequest, no_argument
from .dcgm import DcgmSource
from .nvml import NvmlSource, open_nvml

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


def open_auto(argument: str, request: SourceRequest) -> Source:
    """Open ``auto``: the job's GPUs of either maker, or nothing."""
    no_argument("auto", argument)
    try:
        nvml = open_nvml("", request)
    except SourceError:
        pass
    else:
        return beside_dcgm(nvml, request)
    from .amd import open_amdsmi  # noqa: PLC0415 - where there is no NVIDIA GPU alone

    try:
        return open_amdsmi("", request)
    except SourceError:
        return AbsentSource("nvml")


class NvmlBesideDcgm:
    """NVML's metrics, and DCGM's profiling beside them; NVML alone while the daemon is silent."""

    simulated = False

    def __init__(self, nvml: NvmlSource, dcgm: DcgmSource, request: SourceRequest) -> None:
        self.name = f"{nvml.name}+{dcgm.name}"
        self.devices: tuple[Device, ...] = nvml.devices
        self._nvml = nvml
        self._dcgm = dcgm
        self._clock = request.clock
        self._node = request.environment.get("GIPFEL_NODE", "")
        self._events: list[Event] = []
        self._pause = _FIRST_PAUSE_S
        self._asked_again_ns: int | None = None

    def read(self) -> list[Sample]:
        """Return one sample per GPU, at NVML's time."""
        samples = self._nvml.read()
        profiled = {sample.device: sample.values for sample in self._profiled()}
        return [replace(each, values=_filled(each.values, profiled.get(each.device, {}))) for each in samples]

    def events(self) -> list[Event]:
        """Return NVML's events, and losses and returns of the daemon."""
        found, self._events = [*self._events, *self._nvml.events()], []
        return found

    def processes(self) -> list[tuple[int, str]]:
        """Return processes that compute on the job's GPUs, as far as the driver shows them to this user."""
        return self._nvml.processes()

    def close(self) -> None:
        """End ``dcgmi`` and shut NVML down."""
        try:
            self._dcgm.close()
        finally:
            self._nvml.close()

    def _profiled(self) -> list[Sample]:
        now_ns = self._clock.monotonic_ns()
        if self._asked_again_ns is not None and now_ns < self._asked_again_ns:
            return []
        try:
            found = self._dcgm.read()
        except SourceError as error:
            if self._asked_again_ns is None:
                self._note("source_lost", f"dcgm can't be read, and NVML continues alone: {error.problem}")
            self._asked_again_ns = now_ns + int(self._pause * 1e9)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
            return []
        # After a restart it has no values at first; it is back when it has some.
        if self._asked_again_ns is not None and any(v is not None for s in found for v in s.values.values()):
            self._asked_again_ns, self._pause = None, _FIRST_PAUSE_S
            self._note("source_back", "dcgm can be read again.")
        return found

    def _note(self, kind: str, message: str) -> None:
        self._events.append(Event(self._clock.time_ns(), self._node, kind, "", message))


def beside_dcgm(nvml: NvmlSource, request: SourceRequest) -> NvmlSource | NvmlBesideDcgm:
    """Return NVML with the node's DCGM where no GPU has GPM and the daemon knows them; else NVML alone."""
    if nvml.profiles:
        return nvml
    try:
        dcgm = DcgmSource(request)
    except SourceError:
        return nvml
    if not {device.uuid for device in dcgm.devices} & {device.uuid for device in nvml.devices}:
        dcgm.close()
        return nvml
    return NvmlBesideDcgm(nvml, dcgm, request)


def _filled(values: dict[str, float | None], others: dict[str, float | None]) -> dict[str, float | None]:
    more = {name: value for name, value in others.items() if value is not None and values.get(name) is None}
    return {**values, **more}
