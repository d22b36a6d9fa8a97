"""NVML readings of GPUs on a healthy node, which tests modify."""

import dataclasses
import sys
from typing import Any

from gipfel_extension.vetting.check import CheckContext, Host, ProgramResult
from gipfel_extension.vetting.children import LocalProbes
from gipfel_extension.vetting.gpus import GpuReading, NvLink, ReadingError, Remapped
from gipfel_extension.vetting.probing import ProbeAnswer, ProbeSpec

HEALTHY = GpuReading(
    uuid="GPU-0", index=0, name="NVIDIA GH200 120GB", bus_id="00000009:01:00.0",
    memory_total=102_625_181_696, memory_used=612_368_384, processes=(), compute_mode="default",
    temperature_c=31.0, slowdown_temperature_c=87.0, sm_clock_mhz=345.0, sm_clock_limit_mhz=1980.0,
    sm_clock_max_mhz=1980.0, memory_clock_mhz=2619.0, memory_clock_max_mhz=2619.0, clock_reasons=0x1,
    power_limit_w=900.0,
    power_default_w=900.0, ecc_enabled=True, ecc_corrected=0, ecc_uncorrected=0,
    remapped=Remapped(corrected=0, uncorrected=0, pending=False, failed=False),
    # A healthy node of Alps had 95 replays.
    nvlinks=tuple(NvLink(index, active=True, replay_errors=5, recovery_errors=0) for index in range(18)),
    pcie_width=16, pcie_width_max=16, pcie_generation=5, pcie_generation_max=5, pcie_replays=0,
    recovery_action=0,
)  # fmt: skip


def gpus(count: int = 4, **changes: Any) -> tuple[GpuReading, ...]:
    """Healthy GPUs, the first of which is changed."""
    found = [dataclasses.replace(HEALTHY, uuid=f"GPU-{index}", index=index) for index in range(count)]
    return (dataclasses.replace(found[0], **changes), *found[1:])


class Readings:
    """NVML as recorded, or as an error."""

    def __init__(self, *found: GpuReading, error: str = "") -> None:
        self.found, self.error = found, error

    def read(self) -> tuple[GpuReading, ...]:
        if self.error:
            raise ReadingError(self.error, "Take another node.")
        return self.found


class FakeHost(Host):
    """This machine, with some files and programs replaced by what another one said."""

    def __init__(
        self, *, texts: dict[str, str] | None = None, programs: dict[str, ProgramResult] | None = None
    ) -> None:
        self.texts, self.programs = texts or {}, programs

    def text(self, path: str) -> str:
        return self.texts[path] if path in self.texts else super().text(path)

    def run(self, argv: Any, seconds: float) -> ProgramResult:
        if self.programs is None:
            return super().run(argv, seconds)
        if argv[0] not in self.programs:
            raise FileNotFoundError(2, "No such file or directory", argv[0])
        return self.programs[argv[0]]


class FakeProbes:
    """Answers instead of processes."""

    def __init__(self, *answers: ProbeAnswer) -> None:
        self.answers, self.asked = list(answers), []

    def run(self, spec: ProbeSpec) -> ProbeAnswer:
        self.asked.append(spec)
        return self.answers.pop(0) if self.answers else ProbeAnswer(error="nothing is recorded")


def context(**changes: Any) -> CheckContext:
    """A node with four healthy GPUs."""
    given: dict[str, Any] = {
        "node": "nid000001", "environment": {}, "host": Host(), "gpus": Readings(*gpus()),
        "probes": LocalProbes(sys.executable, {"PATH": "/usr/bin:/bin"}),
        "expected_gpus": 4,
    }  # fmt: skip
    return CheckContext(**{**given, **changes})
