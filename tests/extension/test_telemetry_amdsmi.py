"""AMD SMI as a source, behind an injected library."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source
from gipfel_extension.telemetry.sources.amd import AmdSource


class FakeAmd:
    """AMD SMI 7 as its Python module gives it, on two GPUs; N/A where a GPU doesn't have something."""

    class AmdSmiException(Exception):  # noqa: N818 - its name
        pass

    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self) -> None:
        self.open = 0
        self.read_kib = 1000
        self.broken = False

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["gpu0", "gpu1"]

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return f"{handle}-uuid"

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, object]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, object]:
        if self.broken:
            raise self.AmdSmiException("AMDSMI_STATUS_NO_PERM")
        return {"gfx_activity": 93, "umc_activity": 41, "mm_activity": "N/A"}

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, object]:
        return {"vram_total": 196592, "vram_used": 1024}

    def amdsmi_get_power_info(self, handle: str) -> dict[str, object]:
        return {"current_socket_power": "N/A", "average_socket_power": 640}

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, object]:
        return {"clk": 2100}

    def amdsmi_get_temp_metric(self, handle: str, kind: str, metric: str) -> int:
        return 58

    def amdsmi_get_violation_status(self, handle: str) -> dict[str, object]:
        return {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"}

    def amdsmi_get_gpu_metrics_info(self, handle: str) -> dict[str, object]:
        return {"xgmi_read_data_acc": [self.read_kib, "N/A"], "xgmi_write_data_acc": "N/A"}

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, object]]:
        return [{"pid": 4711, "name": "python"}] if handle == "gpu1" else []


class SetClock:
    now_ns = 10**9

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        return ended.is_set()


def test_amdsmi_values_have_dcgm_names() -> None:
    library, clock = FakeAmd(), SetClock()
    environment = {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0", "GIPFEL_NODE": "n1"}
    source = AmdSource(SourceRequest(environment=environment, clock=clock), library=library)
    assert [(each.uuid, each.name, each.index) for each in source.devices] == [
        ("GPU-gpu1-uuid", "AMD Instinct MI300X", 1)
    ]
    assert source.processes() == [(4711, "GPU-gpu1-uuid")]
    source.read()
    library.read_kib += 2000
    clock.now_ns += 2 * 10**9
    values = source.read()[0].values
    assert (values["GPU_UTIL"], values["MEM_COPY_UTIL"]) == pytest.approx((0.93, 0.41))
    assert values["SM_ACTIVE"] is None
    assert (values["FB_USED"], values["FB_TOTAL"]) == (2**30, 196592 * 2**20)
    assert (values["POWER_USAGE"], values["GPU_TEMP"], values["SM_CLOCK"]) == (640, 58, 2100)
    assert (values["NVLINK_RX_BYTES"], values["NVLINK_TX_BYTES"]) == (1000 * 1024, None)
    assert values["CLOCKS_EVENT_REASONS"] == 4
    library.broken = True
    assert source.read()[0].values["GPU_UTIL"] is None
    source.close()
    assert library.open == 0


def test_amdsmi_without_rocm_or_gpu_raises_source_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The module raises while it is imported where ROCm's library is missing.
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SourceError, match="can't be imported"):
        open_source("amdsmi", SourceRequest(environment={}))
    library = FakeAmd()
    with pytest.raises(SourceError, match="no GPU"):
        AmdSource(SourceRequest(environment={"HIP_VISIBLE_DEVICES": ""}), library=library)
    assert library.open == 0
