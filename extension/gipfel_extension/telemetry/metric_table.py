"""Every metric, declared once: name, unit, what gives it, and how it is drawn.

A row is added to :data:`GPU`, :data:`ON_REQUEST` or :data:`HOST`. With DCGM's number it is recorded from
DCGM, its exporter and Prometheus, and imported from others' files; with GPM's it is read from NVML. Any other
source fills it in under its name. With a drawing it has a line as soon as ``figures/lines.py`` names it.

Names are DCGM's classic ones without ``DCGM_FI_DEV_`` and ``DCGM_FI_PROF_``, numbers those of DCGM's header
since 1.x. Units: "1" is a fraction from 0 to 1, "bits" a mask.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: Bytes of a MiB, the unit of DCGM's sizes and GPM's rates.
MIB = 1024.0 * 1024.0
#: Percent to a fraction.
_PERCENT = 0.01
_NVDEC, _NVJPG, _NVOFA, _LINKS = 8, 8, 2, 18


@dataclass(frozen=True)
class Drawing:
    """Label and line style of a metric in figures.

    Parameters
    ----------
    color
        A name of ``figures.palette.COLORS``; empty for what has a heat map and no line.
    unit, factor
        The unit that is shown, and the factor to it from the metric's own.
    of
        The metric that is 100 %.
    """

    label: str
    color: str = ""
    dash: str = "solid"
    unit: str = "%"
    factor: float = 100.0
    of: str = ""

    @property
    def full(self) -> float:
        """The upper end of the scale; 0 where the values determine it."""
        return 100.0 if self.unit == "%" else 0.0


@dataclass(frozen=True)
class Metric:
    """One metric of a GPU or of a host.

    Parameters
    ----------
    dcgm
        Number of DCGM's field; None where DCGM has none.
    dcgm_factor
        DCGM's value times this is ours.
    classic, newer
        DCGM's classic name where it is not ours, and the one that DCGM 4.6 introduced.
    gpm
        Id of NVML's GPM metric of the same meaning, by DCGM's own mapping.
    gpm_factor
        GPM's value (percent, MiB/s) times this is ours.
    """

    name: str
    unit: str
    drawing: Drawing | None = None
    dcgm: int | None = None
    dcgm_factor: float = 1.0
    classic: str = ""
    newer: str = ""
    gpm: int | None = None
    gpm_factor: float = 1.0

    @property
    def dcgm_name(self) -> str:
        """DCGM's name of the field, without its prefix."""
        return self.classic or self.name


def _share(name: str, dcgm: int, gpm: int, newer: str = "", drawing: Drawing | None = None) -> Metric:
    return Metric(name, "1", drawing, dcgm, newer=newer, gpm=gpm, gpm_factor=_PERCENT)


def _rate(name: str, dcgm: int, gpm: int, drawing: Drawing | None = None) -> Metric:
    # DCGM multiplies GPM's MiB/s itself and keeps whole bytes per second.
    return Metric(name, "B/s", drawing, dcgm, gpm=gpm, gpm_factor=MIB)


def _link(label: str, color: str, dash: str) -> Drawing:
    return Drawing(label, color, dash, "GB/s", 1e-9)


def _io(label: str, color: str, dash: str) -> Drawing:
    return Drawing(label, color, dash, "MB/s", 1e-6)


#: What is recorded of every GPU. ``CLOCKS_EVENT_REASONS`` has the bits of NVML's ``nvmlClocksEventReasons``.
GPU: tuple[Metric, ...] = (
    Metric("GPU_UTIL", "1", Drawing("utilization", "grey", "dash"), 203, _PERCENT),
    _share("GR_ENGINE_ACTIVE", 1001, 1, "GR_ENGINE_UTIL_RATIO", Drawing("engine active", "purple", "dash")),
    _share("SM_ACTIVE", 1002, 2, "SM_UTIL_RATIO", Drawing("SM active", "blue")),
    _share("SM_OCCUPANCY", 1003, 3, "SM_OCCUPANCY_RATIO", Drawing("SM occupancy", "brown", "dot")),
    _share("PIPE_TENSOR_ACTIVE", 1004, 5, "TENSOR_UTIL_RATIO", Drawing("tensor active", "orange", "dot")),
    _share("DRAM_ACTIVE", 1005, 10, "DRAM_UTIL_RATIO", Drawing("DRAM active", "green", "dashdot")),
    _share("PIPE_FP64_ACTIVE", 1006, 11, "FP64_UTIL_RATIO"),
    _share("PIPE_FP32_ACTIVE", 1007, 12, "FP32_UTIL_RATIO", Drawing("FP32 active", "forest", "dashdot")),
    _share("PIPE_FP16_ACTIVE", 1008, 13, "FP16_UTIL_RATIO"),
    _rate("PCIE_TX_BYTES", 1009, 20, _link("PCIe out", "grey", "dash")),
    _rate("PCIE_RX_BYTES", 1010, 21, _link("PCIe in", "green", "dashdot")),
    _rate("NVLINK_TX_BYTES", 1011, 61, _link("NVLink out", "orange", "dot")),
    _rate("NVLINK_RX_BYTES", 1012, 60, _link("NVLink in", "blue", "solid")),
    Metric("FB_USED", "B", None, 252, MIB),
    Metric("FB_TOTAL", "B", None, 250, MIB),
    Metric("POWER_USAGE", "W", Drawing("power", "orange", "solid", "W", 1.0), 155),
    Metric("GPU_TEMP", "°C", Drawing("temperature", "", "", "°C", 1.0), 150),
    Metric("SM_CLOCK", "MHz", Drawing("SM clock", "blue", "solid", "MHz", 1.0), 100),
    _share("PIPE_INT_ACTIVE", 1016, 4, "INT_UTIL_RATIO"),
    _rate("C2C_TX_ALL_BYTES", 1076, 100, _link("C2C out", "brown", "dot")),
    _rate("C2C_RX_ALL_BYTES", 1078, 101, _link("C2C in", "purple", "solid")),
    Metric("CLOCKS_EVENT_REASONS", "bits", None, 112, 1.0, "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
    Metric("MAX_SM_CLOCK", "MHz", None, 113),
)

#: What is recorded of a GPU on request alone.
ON_REQUEST: tuple[Metric, ...] = (
    Metric("MEM_COPY_UTIL", "1", None, 204, _PERCENT),
    Metric("ENC_UTIL", "1", None, 206, _PERCENT),
    Metric("DEC_UTIL", "1", None, 207, _PERCENT),
    Metric("FB_FREE", "B", None, 251, MIB),
    Metric("FB_RESERVED", "B", None, 253, MIB),
    Metric("MEM_CLOCK", "MHz", None, 101),
    Metric("MEMORY_TEMP", "°C", None, 140),
    Metric("TOTAL_ENERGY", "J", None, 156, 1e-3, "TOTAL_ENERGY_CONSUMPTION"),
    _share("PIPE_TENSOR_IMMA_ACTIVE", 1013, 9, "IMMA_UTIL_RATIO"),
    _share("PIPE_TENSOR_HMMA_ACTIVE", 1014, 7, "HMMA_UTIL_RATIO"),
    _share("PIPE_TENSOR_DFMA_ACTIVE", 1015, 6, "DFMA_UTIL_RATIO"),
    *(
        _share(f"{engine}{place}_ACTIVE", dcgm + place, gpm + place, f"{engine}_UTIL_{place}_RATIO")
        for engine, count, dcgm, gpm in (
            ("NVDEC", _NVDEC, 1017, 30),
            ("NVJPG", _NVJPG, 1025, 40),
            ("NVOFA", _NVOFA, 1033, 50),
        )
        for place in range(count)
    ),
    # TX comes first with DCGM, RX with GPM.
    *(
        _rate(f"NVLINK_L{link}_{way}_BYTES", 1040 + 2 * link + place, 63 + 2 * link - place)
        for link in range(_LINKS)
        for place, way in enumerate(("TX", "RX"))
    ),
    _rate("C2C_TX_DATA_BYTES", 1077, 102),
    _rate("C2C_RX_DATA_BYTES", 1079, 103),
    *(
        Metric(f"{memory}MEM_CACHE_{way}", "1", None, dcgm, _PERCENT, gpm=gpm, gpm_factor=_PERCENT)
        for memory, way, dcgm, gpm in (
            ("HOST", "HIT", 1080, 160),
            ("HOST", "MISS", 1081, 161),
            ("PEER", "HIT", 1082, 162),
            ("PEER", "MISS", 1083, 163),
        )
    ),
)

#: What is recorded of the host, as one job sees it.
HOST: tuple[Metric, ...] = (
    Metric("CPU_UTIL", "1", Drawing("CPU", "blue")),
    Metric("CPU_CORES_USED", "cores"),
    Metric("MEMORY_USED", "B", Drawing("memory", "pink", "dash", of="MEMORY_TOTAL")),
    Metric("MEMORY_TOTAL", "B"),
    Metric("IO_READ_BYTES", "B/s", _io("read", "blue", "solid")),
    Metric("IO_WRITE_BYTES", "B/s", _io("write", "orange", "dot")),
    Metric("PRESSURE_CPU", "1"),
    Metric("PRESSURE_MEMORY", "1"),
    Metric("PRESSURE_IO", "1"),
    Metric("NET_TX_BYTES", "B/s"),
    Metric("NET_RX_BYTES", "B/s"),
    Metric("PAGE_FAULTS_MINOR", "1/s"),
    Metric("PAGE_FAULTS_MAJOR", "1/s"),
    Metric("LUSTRE_READ_BYTES", "B/s"),
    Metric("LUSTRE_WRITE_BYTES", "B/s"),
    Metric("LUSTRE_METADATA_OPS", "1/s"),
    Metric("NFS_READ_BYTES", "B/s"),
    Metric("NFS_WRITE_BYTES", "B/s"),
)

#: Every row by its name.
TABLE: Mapping[str, Metric] = {metric.name: metric for metric in (*GPU, *ON_REQUEST, *HOST)}

#: Metrics of a GPU and of the host, and those of a GPU that are recorded on request alone, with their units.
GPU_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in GPU}
HOST_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in HOST}
EXTRA_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in ON_REQUEST}
#: Metrics that are always recorded, by kind of device.
METRICS: Mapping[str, Mapping[str, str]] = {"gpu": GPU_METRICS, "host": HOST_METRICS}

#: Rows by the number of DCGM's field.
DCGM_FIELDS: Mapping[int, Metric] = {metric.dcgm: metric for metric in TABLE.values() if metric.dcgm}

#: What a recorder keeps each second of the score of samples that come ten times a second, as means over the
#: second in which time that can't be scored counts as 0: the share that could be; two levels of the loss
#: breakdown; the lowest possible score; by resource what it scored where it was the highest, for what share,
#: and its part of the most. The spread of the engine's activity is that within the second.
SCORE_PARTS: Mapping[str, str] = dict.fromkeys(
    (
        "SCORE_SHARE",
        "SCORE_RUNNING",
        "SCORE_BUSY",
        "SCORE_LEAST",
        "SCORE_SPREAD",
        *(
            f"SCORE_{part}_{resource}"
            for part in ("POINTS", "BOUND", "TURN")
            for resource in ("COMPUTE", "MEMORY", "INTERCONNECT")
        ),
    ),
    "1",
)


def unit_of(metric: str) -> str:
    """Return the unit of a metric; empty where it is not in the table."""
    known = TABLE.get(metric)
    return known.unit if known is not None else SCORE_PARTS.get(metric, "")
