"""The table of DCGM's fields, compared with DCGM's header and NVML's GPM."""

import pynvml
import pytest

from gipfel_extension.telemetry.metric_table import (
    DCGM_FIELDS,
    EXTRA_METRICS,
    GPU_METRICS,
    HOST_METRICS,
    NIC_METRICS,
    TABLE,
    unit_of,
)
from gipfel_extension.telemetry.sources.dcgm import metric_of, number_of
from gipfel_extension.telemetry.sources.nvidia import ALL_METRICS

#: DCGM's number: classic name, NVML's name of the GPM metric, kind (share of time, or rate of bytes).
_PROFILED = {
    1001: ("GR_ENGINE_ACTIVE", "GRAPHICS_UTIL", "share"),
    1002: ("SM_ACTIVE", "SM_UTIL", "share"),
    1003: ("SM_OCCUPANCY", "SM_OCCUPANCY", "share"),
    1004: ("PIPE_TENSOR_ACTIVE", "ANY_TENSOR_UTIL", "share"),
    1005: ("DRAM_ACTIVE", "DRAM_BW_UTIL", "share"),
    1006: ("PIPE_FP64_ACTIVE", "FP64_UTIL", "share"),
    1007: ("PIPE_FP32_ACTIVE", "FP32_UTIL", "share"),
    1008: ("PIPE_FP16_ACTIVE", "FP16_UTIL", "share"),
    1009: ("PCIE_TX_BYTES", "PCIE_TX_PER_SEC", "rate"),
    1010: ("PCIE_RX_BYTES", "PCIE_RX_PER_SEC", "rate"),
    1011: ("NVLINK_TX_BYTES", "NVLINK_TOTAL_TX_PER_SEC", "rate"),
    1012: ("NVLINK_RX_BYTES", "NVLINK_TOTAL_RX_PER_SEC", "rate"),
    1013: ("PIPE_TENSOR_IMMA_ACTIVE", "IMMA_TENSOR_UTIL", "share"),
    1014: ("PIPE_TENSOR_HMMA_ACTIVE", "HMMA_TENSOR_UTIL", "share"),
    1015: ("PIPE_TENSOR_DFMA_ACTIVE", "DFMA_TENSOR_UTIL", "share"),
    1016: ("PIPE_INT_ACTIVE", "INTEGER_UTIL", "share"),
    1017: ("NVDEC0_ACTIVE", "NVDEC_0_UTIL", "share"),
    1024: ("NVDEC7_ACTIVE", "NVDEC_7_UTIL", "share"),
    1025: ("NVJPG0_ACTIVE", "NVJPG_0_UTIL", "share"),
    1032: ("NVJPG7_ACTIVE", "NVJPG_7_UTIL", "share"),
    1033: ("NVOFA0_ACTIVE", "NVOFA_0_UTIL", "share"),
    1034: ("NVOFA1_ACTIVE", "NVOFA_1_UTIL", "share"),
    1040: ("NVLINK_L0_TX_BYTES", "NVLINK_L0_TX_PER_SEC", "rate"),
    1041: ("NVLINK_L0_RX_BYTES", "NVLINK_L0_RX_PER_SEC", "rate"),
    1074: ("NVLINK_L17_TX_BYTES", "NVLINK_L17_TX_PER_SEC", "rate"),
    1075: ("NVLINK_L17_RX_BYTES", "NVLINK_L17_RX_PER_SEC", "rate"),
    1076: ("C2C_TX_ALL_BYTES", "C2C_TOTAL_TX_PER_SEC", "rate"),
    1077: ("C2C_TX_DATA_BYTES", "C2C_DATA_TX_PER_SEC", "rate"),
    1078: ("C2C_RX_ALL_BYTES", "C2C_TOTAL_RX_PER_SEC", "rate"),
    1079: ("C2C_RX_DATA_BYTES", "C2C_DATA_RX_PER_SEC", "rate"),
}
_PLAIN = {
    100: ("SM_CLOCK", 1.0), 113: ("MAX_SM_CLOCK", 1.0),
    101: ("MEM_CLOCK", 1.0), 140: ("MEMORY_TEMP", 1.0), 150: ("GPU_TEMP", 1.0),
    155: ("POWER_USAGE", 1.0), 156: ("TOTAL_ENERGY", 0.001), 203: ("GPU_UTIL", 0.01),
    204: ("MEM_COPY_UTIL", 0.01), 250: ("FB_TOTAL", 2**20), 251: ("FB_FREE", 2**20), 252: ("FB_USED", 2**20),
    253: ("FB_RESERVED", 2**20),
}  # fmt: skip
#: Without a name in the Python module: NVML's header has them by number alone.
_CACHES = {1080: 160, 1081: 161, 1082: 162, 1083: 163}


@pytest.mark.parametrize("number", _PROFILED)
def test_a_profiled_field_is_the_gpm_metric_of_the_same_meaning(number):
    name, gpm, kind = _PROFILED[number]
    field = DCGM_FIELDS[number]
    assert (field.dcgm_name, field.name) == (name, name)
    assert field.gpm_id == getattr(pynvml, f"NVML_GPM_METRIC_{gpm}")
    assert (field.unit, field.dcgm_factor, field.gpm_factor) == (
        ("1", 1.0, 0.01) if kind == "share" else ("B/s", 1.0, 1024 * 1024)
    )
    assert ALL_METRICS[name] == (field.gpm_id, field.gpm_factor)


def test_plain_fields_have_their_units():
    assert {
        number: (DCGM_FIELDS[number].name, DCGM_FIELDS[number].dcgm_factor) for number in _PLAIN
    } == _PLAIN
    assert {number: DCGM_FIELDS[number].gpm_id for number in _CACHES} == _CACHES


def test_links_are_counted_from_tx_by_dcgm_and_from_rx_by_gpm():
    for link in range(18):
        sent, received = DCGM_FIELDS[1040 + 2 * link], DCGM_FIELDS[1041 + 2 * link]
        assert (sent.name, received.name) == (f"NVLINK_L{link}_TX_BYTES", f"NVLINK_L{link}_RX_BYTES")
        assert (sent.gpm_id, received.gpm_id) == (63 + 2 * link, 62 + 2 * link)


def test_every_metric_has_one_field_and_the_unit_that_it_is_recorded_in():
    assert {field.name for field in DCGM_FIELDS.values()} == {*GPU_METRICS, *EXTRA_METRICS}
    assert len(TABLE) == len({*GPU_METRICS, *EXTRA_METRICS, *HOST_METRICS, *NIC_METRICS})
    assert all(field.unit == unit_of(field.name) for field in DCGM_FIELDS.values())
    assert not set(GPU_METRICS) & set(EXTRA_METRICS)


def test_old_and_new_names_are_the_same_metric():
    assert (
        metric_of("DCGM_FI_PROF_SM_UTIL_RATIO") == metric_of("DCGM_FI_PROF_SM_ACTIVE") == ("SM_ACTIVE", 1.0)
    )
    assert metric_of("DCGM_FI_DEV_CLOCKS_EVENT_REASONS") == metric_of("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    assert metric_of("SM_ACTIVE") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9223372036854775794", None),
        ("9223372036854775792", None),
        ("2147483632", None),
        ("2147483635", None),
        ("140737488355328.000000", None),
        ("N/A", None),
        ("nan", None),
        ("inf", None),
        # What is merely large is a number: a link at full speed, a counter since boot.
        ("450000000000", 450e9),
        ("2147483631", 2147483631.0),
        ("140737488355327", 140737488355327.0),
        ("0", 0.0),
    ],
)
def test_blanks_are_missing_and_large_numbers_are_not(text, number):
    assert number_of(text) == number
