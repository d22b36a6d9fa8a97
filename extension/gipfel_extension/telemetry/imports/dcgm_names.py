"""DCGM's field names as others write them, and their blanks."""

from collections.abc import Mapping

MIB = 1024.0 * 1024.0

#: DCGM's name without ``DCGM_FI_DEV_`` or ``DCGM_FI_PROF_`` to our metric and the factor to its unit.
FIELDS: Mapping[str, tuple[str, float]] = {
    "GPU_UTIL": ("GPU_UTIL", 0.01),
    "FB_USED": ("FB_USED", MIB),
    "FB_TOTAL": ("FB_TOTAL", MIB),
    "POWER_USAGE": ("POWER_USAGE", 1.0),
    "GPU_TEMP": ("GPU_TEMP", 1.0),
    "SM_CLOCK": ("SM_CLOCK", 1.0),
    "CLOCKS_EVENT_REASONS": ("CLOCKS_EVENT_REASONS", 1.0),
    "CLOCK_THROTTLE_REASONS": ("CLOCKS_EVENT_REASONS", 1.0),
    **{
        name: (name, 1.0)
        for name in (
            "GR_ENGINE_ACTIVE",
            "SM_ACTIVE",
            "SM_OCCUPANCY",
            "DRAM_ACTIVE",
            "PIPE_TENSOR_ACTIVE",
            "PIPE_FP64_ACTIVE",
            "PIPE_FP32_ACTIVE",
            "PIPE_FP16_ACTIVE",
            "PIPE_INT_ACTIVE",
            "PCIE_TX_BYTES",
            "PCIE_RX_BYTES",
            "NVLINK_TX_BYTES",
            "NVLINK_RX_BYTES",
            "C2C_TX_ALL_BYTES",
            "C2C_RX_ALL_BYTES",
        )
    },
}

#: DCGM's exact blanks (blank, not found, not supported, not permitted) for 32 and 64 bits and for floats.
BLANKS = frozenset(
    float(start + step) for start in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328) for step in range(4)
)


def metric_of(field: str) -> tuple[str, float] | None:
    """Our metric and factor for ``DCGM_FI_DEV_…`` or ``DCGM_FI_PROF_…``; None for others."""
    name = field.removeprefix("DCGM_FI_DEV_").removeprefix("DCGM_FI_PROF_")
    return FIELDS.get(name) if name != field else None


def number_of(text: object) -> float:
    """A value as it was written; NaN for a blank, for words and for what isn't finite."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")
    return float("nan") if value in BLANKS or not abs(value) < float("inf") else value
