"""The NVML source with a fake library: the job's GPUs, and values that drivers and GPUs refuse."""

import pynvml
import pytest
from nvml_fake import HOPPER, FakeNvml, opened

from gipfel_extension.telemetry.sample import SourceError


def test_plain_nvml_where_there_is_no_gpm():
    library = FakeNvml(gpm=None)
    source, _ = opened(library)
    values = source.read()[0].values
    assert source.name == "nvml"
    assert values["SM_ACTIVE"] is None
    assert values["DRAM_ACTIVE"] is None
    assert values["GPU_UTIL"] == 0.87
    assert values["PCIE_TX_BYTES"] == 1000 * 1024
    assert values["PCIE_RX_BYTES"] == 1001 * 1024


def test_pcie_is_left_out_where_its_windows_would_fill_the_interval():
    library = FakeNvml(gpus=8, gpm=None)
    source, _ = opened(library, interval=0.5)
    assert source.read()[0].values["PCIE_TX_BYTES"] is None
    assert library.pcie_reads == 0


def test_a_user_who_may_not_profile_still_gets_plain_nvml():
    library = FakeNvml(gpm=HOPPER)
    library.refused["nvmlGpmSampleGet"] = pynvml.NVML_ERROR_NO_PERMISSION
    source, clock = opened(library)
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert (source.name, values["SM_ACTIVE"], values["GPU_UTIL"]) == ("nvml", None, 0.87)
    assert not library.samples


def test_a_gpu_that_is_lost_gives_missing_values():
    library = FakeNvml(gpus=1, gpm=HOPPER)
    source, clock = opened(library)
    lost = ("nvmlGpmMetricsGet", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage")
    library.refused = dict.fromkeys(lost, pynvml.NVML_ERROR_GPU_IS_LOST)
    clock.now_ns = 10**9
    values = source.read()[0].values
    assert [values[name] for name in ("SM_ACTIVE", "GPU_UTIL", "POWER_USAGE")] == [None, None, None]
    library.refused = {}
    clock.now_ns = 2 * 10**9
    assert source.read()[0].values["SM_ACTIVE"] == pytest.approx(0.875)


def test_a_gpu_that_is_lost_is_an_event_once():
    library = FakeNvml(gpus=2, gpm=HOPPER)
    source, clock = opened(library, GIPFEL_NODE="n1")
    assert source.events() == []
    library.refused = {"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_GPU_IS_LOST}
    for second in (1, 2, 3):
        clock.now_ns = second * 10**9
        source.read()
    assert [(each.kind, each.device, each.node) for each in source.events()] == [
        ("gpu_lost", "GPU-gpu0", "n1"),
        ("gpu_lost", "GPU-gpu1", "n1"),
    ]
    assert source.events() == []
    source.close()


def test_nvml_lists_only_gpus_that_the_cgroup_permits():
    def odd(minor: int) -> bool:
        return minor % 2 == 1

    source, _ = opened(FakeNvml(gpus=4), can_open=odd)
    assert [device.uuid for device in source.devices] == ["GPU-gpu1", "GPU-gpu3"]
    source, _ = opened(FakeNvml(gpus=4), can_open=odd, CUDA_VISIBLE_DEVICES="1")
    assert [device.uuid for device in source.devices] == ["GPU-gpu3"]
    source, _ = opened(FakeNvml(gpus=4), SLURM_STEP_GPUS="0,2")
    assert [device.uuid for device in source.devices] == ["GPU-gpu0", "GPU-gpu2"]


def test_an_old_driver_has_throttle_reasons():
    library = FakeNvml(gpus=1)
    library.refused["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    source, _ = opened(library)
    assert source.read()[0].values["CLOCKS_EVENT_REASONS"] == 64


def test_an_old_driver_has_memory_without_version_2():
    library = FakeNvml(gpus=1)
    library.refused["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    source, _ = opened(library)
    assert source.read()[0].values["FB_USED"] == 41 * 2**30


def test_only_the_jobs_gpus():
    source, _ = opened(FakeNvml(gpus=4), CUDA_VISIBLE_DEVICES="2,GPU-gpu0", GIPFEL_NODE="n1")
    assert [(device.uuid, device.index, device.node) for device in source.devices] == [
        ("GPU-gpu0", 0, "n1"),
        ("GPU-gpu2", 2, "n1"),
    ]
    assert {sample.device for sample in source.read()} == {"GPU-gpu0", "GPU-gpu2"}


def test_mig_instances_are_read_through_their_gpu():
    library = FakeNvml(gpus=1, gpm=HOPPER, mig=2)
    source, clock = opened(library, CUDA_VISIBLE_DEVICES="MIG-gpu0-1")
    clock.now_ns = 10**9
    (sample,) = source.read()
    assert sample.device == "MIG-gpu0-1"
    assert sample.values["SM_ACTIVE"] == pytest.approx(0.875)
    assert sample.values["POWER_USAGE"] is None
    assert library.requests[0][0][:2] == ("gpu0", 8)


@pytest.mark.parametrize("environment", [{"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "9"}])
def test_a_job_without_a_gpu_is_one_line_and_leaves_nml_closed(environment):
    library = FakeNvml()
    with pytest.raises(SourceError, match="no GPU"):
        opened(library, **environment)
    assert library.open == 0


def test_a_machine_without_a_driver_is_one_line():
    library = FakeNvml()
    library.refused["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(SourceError, match="NVML can't be opened"):
        opened(library)


def test_closing_frees_everything():
    library = FakeNvml(gpm=HOPPER)
    source, _ = opened(library)
    assert len(library.samples) == 4
    source.close()
    assert (library.samples, library.open) == ({}, 0)
