"""DCGM's fields: number, name and unit, and the metric of NVML's GPM that carries the same number.

Numbers are those of DCGM's header since 1.x; names are the classic ones, without ``DCGM_FI_DEV_`` and
``DCGM_FI_PROF_``, with those that DCGM 4.6 introduced beside them. GPM's ids are DCGM's own mapping.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MIB = 1024.0 * 1024.0
#: Per cent to a fraction.
_SHARE = 0.01
_NVDEC, _NVJPG, _NVOFA, _LINKS = 8, 8, 2, 18


@dataclass(frozen=True)
class DcgmField:
    """One field of DCGM.

    Parameters
    ----------
    name
        DCGM's classic name without its prefix.
    metric, unit
        Ours; ``unit`` is that of :data:`sample.GPU_METRICS`.
    factor
        DCGM's value times this is ours.
    gpm
        Id of NVML's GPM metric of the same meaning, None where there is none.
    gpm_factor
        GPM's value (per cent, MiB/s) times this is ours.
    newer
        DCGM 4.6's name.
    """

    number: int
    name: str
    metric: str
    unit: str
    factor: float = 1.0
    gpm: int | None = None
    gpm_factor: float = 1.0
    newer: str = ""


def _share(number: int, name: str, gpm: int, newer: str = "") -> DcgmField:
    return DcgmField(number, name, name, "1", gpm=gpm, gpm_factor=_SHARE, newer=newer)


def _rate(number: int, name: str, gpm: int) -> DcgmField:
    # DCGM multiplies GPM's MiB/s itself and keeps whole bytes per second.
    return DcgmField(number, name, name, "B/s", gpm=gpm, gpm_factor=MIB)


def _fields() -> Iterator[DcgmField]:
    yield DcgmField(100, "SM_CLOCK", "SM_CLOCK", "MHz")
    yield DcgmField(101, "MEM_CLOCK", "MEM_CLOCK", "MHz")
    yield DcgmField(
        112, "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS", "bits", newer="CLOCKS_EVENT_REASONS"
    )
    yield DcgmField(113, "MAX_SM_CLOCK", "MAX_SM_CLOCK", "MHz")
    yield DcgmField(140, "MEMORY_TEMP", "MEMORY_TEMP", "°C")
    yield DcgmField(150, "GPU_TEMP", "GPU_TEMP", "°C")
    yield DcgmField(155, "POWER_USAGE", "POWER_USAGE", "W")
    yield DcgmField(156, "TOTAL_ENERGY_CONSUMPTION", "TOTAL_ENERGY", "J", 1e-3)
    yield DcgmField(203, "GPU_UTIL", "GPU_UTIL", "1", _SHARE)
    yield DcgmField(204, "MEM_COPY_UTIL", "MEM_COPY_UTIL", "1", _SHARE)
    yield DcgmField(206, "ENC_UTIL", "ENC_UTIL", "1", _SHARE)
    yield DcgmField(207, "DEC_UTIL", "DEC_UTIL", "1", _SHARE)
    for number, name in ((250, "FB_TOTAL"), (251, "FB_FREE"), (252, "FB_USED"), (253, "FB_RESERVED")):
        yield DcgmField(number, name, name, "B", MIB)
    yield _share(1001, "GR_ENGINE_ACTIVE", 1, "GR_ENGINE_UTIL_RATIO")
    yield _share(1002, "SM_ACTIVE", 2, "SM_UTIL_RATIO")
    yield _share(1003, "SM_OCCUPANCY", 3, "SM_OCCUPANCY_RATIO")
    yield _share(1004, "PIPE_TENSOR_ACTIVE", 5, "TENSOR_UTIL_RATIO")
    yield _share(1005, "DRAM_ACTIVE", 10, "DRAM_UTIL_RATIO")
    yield _share(1006, "PIPE_FP64_ACTIVE", 11, "FP64_UTIL_RATIO")
    yield _share(1007, "PIPE_FP32_ACTIVE", 12, "FP32_UTIL_RATIO")
    yield _share(1008, "PIPE_FP16_ACTIVE", 13, "FP16_UTIL_RATIO")
    yield _rate(1009, "PCIE_TX_BYTES", 20)
    yield _rate(1010, "PCIE_RX_BYTES", 21)
    yield _rate(1011, "NVLINK_TX_BYTES", 61)
    yield _rate(1012, "NVLINK_RX_BYTES", 60)
    yield _share(1013, "PIPE_TENSOR_IMMA_ACTIVE", 9, "IMMA_UTIL_RATIO")
    yield _share(1014, "PIPE_TENSOR_HMMA_ACTIVE", 7, "HMMA_UTIL_RATIO")
    yield _share(1015, "PIPE_TENSOR_DFMA_ACTIVE", 6, "DFMA_UTIL_RATIO")
    yield _share(1016, "PIPE_INT_ACTIVE", 4, "INT_UTIL_RATIO")
    for engine, count, number, gpm in (
        ("NVDEC", _NVDEC, 1017, 30),
        ("NVJPG", _NVJPG, 1025, 40),
        ("NVOFA", _NVOFA, 1033, 50),
    ):
        for place in range(count):
            newer = f"{engine}_UTIL_{place}_RATIO"
            yield _share(number + place, f"{engine}{place}_ACTIVE", gpm + place, newer)
    for link in range(_LINKS):
        # TX comes first with DCGM, RX with GPM.
        yield _rate(1040 + 2 * link, f"NVLINK_L{link}_TX_BYTES", 63 + 2 * link)
        yield _rate(1041 + 2 * link, f"NVLINK_L{link}_RX_BYTES", 62 + 2 * link)
    yield _rate(1076, "C2C_TX_ALL_BYTES", 100)
    yield _rate(1077, "C2C_TX_DATA_BYTES", 102)
    yield _rate(1078, "C2C_RX_ALL_BYTES", 101)
    yield _rate(1079, "C2C_RX_DATA_BYTES", 103)
    for number, name, gpm in (
        (1080, "HOSTMEM_CACHE_HIT", 160),
        (1081, "HOSTMEM_CACHE_MISS", 161),
        (1082, "PEERMEM_CACHE_HIT", 162),
        (1083, "PEERMEM_CACHE_MISS", 163),
    ):
        yield DcgmField(number, name, name, "1", _SHARE, gpm, _SHARE)


#: Every field that can be recorded, by its number.
DCGM_FIELDS: Mapping[int, DcgmField] = {field.number: field for field in _fields()}

#: The same by the name of our metric.
BY_METRIC: Mapping[str, DcgmField] = {field.metric: field for field in DCGM_FIELDS.values()}

#: DCGM's exact blanks (blank, not found, not supported, not permitted) for 32 and 64 bits and for floats.
BLANKS = frozenset(
    float(start + step) for start in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328) for step in range(4)
)


def number_of(text: object) -> float | None:
    """A value as DCGM wrote it; None for a blank, for words and for what isn't finite."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if value in BLANKS or not abs(value) < float("inf") else value


def scaled(text: object, factor: float) -> float | None:
    """A value as DCGM wrote it in our unit; None where it is a blank, or finite no more."""
    value = number_of(text)
    return None if value is None or not abs(value * factor) < float("inf") else value * factor
