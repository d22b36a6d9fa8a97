"""Readings through NVML: refused values are None, and values with older names are found."""
# ruff: noqa: N802, N815 - NVML's own names

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gipfel_extension.vetting.gpus import Nvml, ReadingError, Remapped


class Library:
    """NVML of one Hopper GPU, as `pynvml` gives it; what is not here, this driver does not know."""

    NVML_SUCCESS = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlMemory_v2 = 2

    class NVMLError(Exception):
        def __init__(self, said: str, value: int = 3) -> None:
            super().__init__(said)
            self.value = value

    def __init__(self, count: int = 2, *, broken_link: int | None = None) -> None:
        self.count, self.open, self.broken_link = count, 0, broken_link

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA GH200 120GB"

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int = 1) -> Any:
        if version == 2:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=100, used=7)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [SimpleNamespace(pid=12, usedGpuMemory=None)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> Any:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 4

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return 500_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:
        return 900_000

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, ...]:
        return (0, 1, 1, 0)

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return 3

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link == self.broken_link:
            raise self.NVMLError("Unknown Error", 999)
        if link >= 2:
            raise self.NVMLError("Invalid Argument", 2)
        return 1 - link

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:
        return 10 * counter

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> Any:
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))]


def test_a_reading_of_each_gpu():
    library = Library()
    first, second = Nvml({}, library).read()
    assert library.open == 0
    assert (first.uuid, second.uuid) == ("GPU-0", "GPU-1")
    assert (first.memory_used, first.clock_reasons, first.compute_mode) == (7, 4, "exclusive_process")
    assert (first.power_limit_w, first.power_default_w) == (500.0, 900.0)
    assert first.remapped == Remapped(0, 1, pending=True, failed=False)
    assert first.processes[0].pid == 12
    assert [(link.active, link.recovery_errors) for link in first.nvlinks] == [(True, 10), (False, 10)]
    assert first.recovery_action == 2
    assert first.temperature_c is None
    assert first.ecc_enabled is None


def test_only_the_gpus_of_the_job():
    (only,) = Nvml({"CUDA_VISIBLE_DEVICES": "1"}, Library()).read()
    assert only.uuid == "GPU-1"
    with pytest.raises(ReadingError, match="lists none"):
        Nvml({"CUDA_VISIBLE_DEVICES": ""}, Library()).read()
    with pytest.raises(ReadingError, match="No devices were found"):
        Nvml({}, Library(0)).read()


def test_a_gpu_that_is_lost_while_reading():
    library = Library()
    library.nvmlDeviceGetUUID = lambda handle: (_ for _ in ()).throw(library.NVMLError("GPU is lost"))
    with pytest.raises(ReadingError, match="GPU is lost"):
        Nvml({}, library).read()
    assert library.open == 0


def test_readings_and_figures_need_no_pydantic():
    code = (
        "import sys; sys.modules['pydantic'] = sys.modules['yaml'] = None\n"
        "import gipfel_extension.vetting.gpus, gipfel_extension.vetting.reference_values\n"
        "import gipfel_extension.vetting.statistics\n"
        "from gipfel_extension.vetting.reference_values import gpu_reference\n"
        "print(gpu_reference('matmul', 'NVIDIA H100 80GB HBM3').value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "794500000000000.0", done.stderr


def test_a_link_that_nvml_cannot_read_does_not_end_the_list_of_links():
    first, _ = Nvml({}, Library(broken_link=0)).read()
    assert [link.active for link in first.nvlinks] == [None, False]
