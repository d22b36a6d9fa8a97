"""Levels, ceilings and loss breakdown: the arithmetic of one sample."""

import numpy as np
import pytest
from saturation_tables import H100, busy, gpu, table

from gipfel_extension.saturation import Weights, ceilings_of
from gipfel_extension.saturation.levels import fractions, levels_of
from gipfel_extension.saturation.loss_breakdown import loss_breakdown_of
from gipfel_extension.saturation.settings import LINKS, TABLE, slice_of
from gipfel_extension.telemetry.sources.nvidia import GPM_METRICS


def levels(weights: Weights | None = None, name: str = H100, **values: object):
    device = gpu(name=name)
    columns = table({device: busy(**values)}, length=1)[device.uuid]
    return levels_of(columns, ceilings_of(name), weights or Weights())


def one(values: object) -> float:
    return float(np.asarray(values)[0])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA GH200 120GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", ""),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H800", "H800"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", ""),
        ("Tesla T4", "T4"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("AMD Instinct MI300X", "MI300X"),
        ("simulated GPU", ""),
        ("", ""),
    ],
)
def test_a_device_finds_its_models_ceilings(name, model):
    assert ceilings_of(name).model == model


def test_every_ceiling_names_its_source_and_can_be_reached():
    for entry in TABLE:
        assert entry.source, entry.model
        assert set(entry.links) <= set(LINKS), entry.model
        assert all(rate > 1e9 for rate in entry.links.values()), entry.model
        assert 0.5 <= entry.memory <= 1.0


def test_the_metrics_are_those_that_sources_read():
    read = set(GPM_METRICS)
    assert {"PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "SM_ACTIVE", "GR_ENGINE_ACTIVE"} <= read
    assert {*LINKS["nvlink"], *LINKS["pcie"]} <= read


def test_each_resource_is_its_busiest_part_over_its_ceiling():
    found = levels(tensor=0.5, dram=0.45, PIPE_FP32_ACTIVE=0.6, NVLINK_TX_BYTES=90e9, NVLINK_RX_BYTES=135e9)
    assert one(found.resources["compute"]) == pytest.approx(0.6)
    assert one(found.resources["memory"]) == pytest.approx(0.5)
    assert one(found.resources["interconnect"]) == pytest.approx(135 / 450)
    assert one(found.saturation) == pytest.approx(0.6)


def test_the_integer_pipe_and_c2c_count_where_a_source_records_them():
    found = levels(name="NVIDIA GH200 120GB", tensor=0.1, PIPE_INT_ACTIVE=0.4, C2C_RX_ALL_BYTES=225e9)
    assert one(found.resources["compute"]) == pytest.approx(0.4)
    assert one(found.resources["interconnect"]) == pytest.approx(0.5)


def test_a_level_is_at_most_one():
    found = levels(dram=0.97, NVLINK_RX_BYTES=999e9)
    assert one(found.resources["memory"]) == 1.0
    assert one(found.resources["interconnect"]) == 1.0


def test_a_link_to_the_host_counts_as_far_as_sms_have_work():
    assert one(levels(active=0.25, PCIE_RX_BYTES=99e9).resources["interconnect"]) == 0.25
    assert one(levels(active=0.9, PCIE_RX_BYTES=5.568e9).resources["interconnect"]) == pytest.approx(0.1)


def test_a_pipe_counts_at_the_clock_that_the_gpu_could_run():
    found = levels(tensor=0.9, dram=0.0, SM_CLOCK=990.0, MAX_SM_CLOCK=1980.0)
    assert one(found.resources["compute"]) == pytest.approx(0.45)
    # The table knows the maximum where the driver doesn't say; a clock above it counts as the maximum.
    assert one(levels(tensor=0.9, dram=0.0, SM_CLOCK=990.0).resources["compute"]) == pytest.approx(0.45)
    assert one(levels(tensor=0.9, dram=0.0, SM_CLOCK=2500.0).resources["compute"]) == pytest.approx(0.9)
    assert one(levels(name="another GPU", tensor=0.9, dram=0.0, SM_CLOCK=990.0).clock) == 1.0


def test_one_value_above_one_is_missing_and_many_make_the_metric_faulty():
    device = gpu()
    tensor = np.full(200, 0.5)
    tensor[3] = 1.2
    columns = table({device: busy(tensor=tensor)}, length=200)[device.uuid]
    found = levels_of(columns, ceilings_of(H100), Weights())
    assert np.isnan(fractions(columns, "PIPE_TENSOR_ACTIVE")).sum() == 1
    assert found.faulty == ()
    per_cent = levels(tensor=35.0)
    assert per_cent.faulty == ("PIPE_TENSOR_ACTIVE",)
    assert one(per_cent.resources["compute"]) == 0.0


@pytest.mark.parametrize(
    ("name", "size"), [("NVIDIA H100 MIG 1g.10gb", 1 / 7), (H100, 1.0), ("MIG 7g.80gb", 1.0)]
)
def test_a_mig_instance_is_as_large_as_its_name_says(name, size):
    assert slice_of(name) == pytest.approx(size)


def test_weights_multiply_levels_before_the_highest_binds():
    plain, weighted = levels(tensor=0.5, dram=0.54), levels(Weights(memory=0.5), tensor=0.5, dram=0.54)
    assert (one(plain.saturation), int(one(plain.binding))) == (pytest.approx(0.6), 1)
    assert (one(weighted.saturation), int(one(weighted.binding))) == (pytest.approx(0.5), 0)


def test_a_link_that_the_model_has_not_is_left_out():
    assert np.isnan(one(levels(name="another GPU", NVLINK_TX_BYTES=90e9).resources["interconnect"]))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0])
def test_what_is_no_reading_is_missing(odd):
    found = levels(tensor=odd, dram=0.45)
    assert one(found.saturation) == pytest.approx(0.5)
    assert found.completeness < 1.0


def test_a_sample_needs_a_resource_and_an_activity():
    nan = float("nan")
    pipes = dict.fromkeys(("PIPE_FP64_ACTIVE", "PIPE_FP32_ACTIVE", "PIPE_FP16_ACTIVE"), nan)
    assert levels(dram=nan).known.all()
    assert levels(tensor=nan).known.all()
    # PCIe alone, as plain NVML has it, does not measure saturation.
    assert not levels(tensor=nan, dram=nan, **pipes, PCIE_RX_BYTES=50e9).known.any()
    assert not levels(active=nan, engine=nan, GPU_UTIL=nan).known.any()


def test_utilization_stands_in_for_a_missing_engine():
    assert one(levels(engine=float("nan"), GPU_UTIL=0.7).engine) == 0.7
    assert one(levels(engine=0.2, GPU_UTIL=0.7).engine) == 0.2


def test_the_steps():
    steps = loss_breakdown_of(levels(tensor=0.3, dram=0.0, active=0.5, engine=0.8))
    assert [one(step) for step in (steps.gpu_idle, steps.sms_empty, steps.sms_stalled)] == pytest.approx(
        [0.2, 0.3, 0.2]
    )


def test_without_sm_activity_all_between_engine_and_pipes_is_waiting():
    steps = loss_breakdown_of(levels(tensor=0.3, dram=0.0, active=float("nan"), engine=0.8))
    assert [one(step) for step in (steps.gpu_idle, steps.sms_empty, steps.sms_stalled)] == pytest.approx(
        [0.2, 0.0, 0.5]
    )


def test_links_alone_keep_a_gpu_from_being_off():
    steps = loss_breakdown_of(levels(tensor=0.0, dram=0.0, active=0.0, engine=0.0, NVLINK_TX_BYTES=360e9))
    assert [one(step) for step in (steps.gpu_idle, steps.sms_empty, steps.sms_stalled)] == pytest.approx(
        [0.2, 0.0, 0.0]
    )
