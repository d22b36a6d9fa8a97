"""Declaration of every metric: name, unit, ids in DCGM and GPM, and line style in figures.

To add a metric, add a row to :data:`GPU`, :data:`ON_REQUEST` or :data:`HOST`. One with a DCGM field id is
recorded from DCGM, DCGM exporter and Prometheus, and imported from other tools' files. A metric with a GPM id
is read from NVML. Other sources fill a metric in by its name. A metric with a line style is drawn once
``figures/lines.py`` names it.

Names are DCGM's classic names without ``DCGM_FI_DEV_`` and ``DCGM_FI_PROF_``. Field ids are those of DCGM's
header since 1.x. Units: "1" is a fraction from 0 to 1, "bits" a bit mask.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

#: Bytes in a MiB, the unit of DCGM's sizes and GPM's rates.
MIB = 1024.0 * 1024.0
#: Factor from percent to a fraction.
_PERCENT = 0.01
_NVDEC, _NVJPG, _NVOFA, _LINKS = 8, 8, 2, 18


@dataclass(frozen=True)
class LineStyle:
    """Label and line style of a metric in figures.

    Parameters
    ----------
    color
        A key of ``figures.palette.COLORS``; empty for a metric that is drawn only as a heat map.
    unit, factor
        The displayed unit, and the factor from the metric's own unit to it.
    percent_of
        The metric whose value is 100 %; empty where the values themselves are scaled.
    """

    label: str
    color: str = ""
    dash: str = "solid"
    unit: str = "%"
    factor: float = 100.0
    percent_of: str = ""

    @property
    def scale_max(self) -> float:
        """Upper end of the scale; 0 where the scale fits the values."""
        return 100.0 if self.unit == "%" else 0.0


@dataclass(frozen=True)
class Metric:
    """One metric of a GPU or of a host.

    Parameters
    ----------
    dcgm_id
        Id of the DCGM field; None where DCGM has no such field.
    dcgm_factor
        Factor from DCGM's unit to `unit`.
    dcgm_classic_name, dcgm_new_name
        DCGM's classic name where it differs from `name`, and the name that DCGM 4.6 introduced.
    gpm_id
        Id of the NVML GPM metric of the same meaning, by DCGM's own mapping.
    gpm_factor
        Factor from GPM's unit (percent, MiB/s) to `unit`.
    """

    name: str
    unit: str
    line_style: LineStyle | None = None
    dcgm_id: int | None = None
    dcgm_factor: float = 1.0
    dcgm_classic_name: str = ""
    dcgm_new_name: str = ""
    gpm_id: int | None = None
    gpm_factor: float = 1.0

    @property
    def dcgm_name(self) -> str:
        """DCGM's name of the field, without its prefix."""
        return self.dcgm_classic_name or self.name


def _fraction(
    name: str, dcgm_id: int, gpm_id: int, new_name: str = "", style: LineStyle | None = None
) -> Metric:
    return Metric(name, "1", style, dcgm_id, dcgm_new_name=new_name, gpm_id=gpm_id, gpm_factor=_PERCENT)


def _rate(name: str, dcgm_id: int, gpm_id: int, style: LineStyle | None = None) -> Metric:
    # DCGM converts GPM's MiB/s itself and keeps whole bytes per second.
    return Metric(name, "B/s", style, dcgm_id, gpm_id=gpm_id, gpm_factor=MIB)


_link = partial(LineStyle, unit="GB/s", factor=1e-9)
_io = partial(LineStyle, unit="MB/s", factor=1e-6)


#: Metrics that are recorded of every GPU. The bits of ``CLOCKS_EVENT_REASONS`` are those of NVML's
#: ``nvmlClocksEventReasons``.
GPU: tuple[Metric, ...] = (
    Metric("GPU_UTIL", "1", LineStyle("utilization", "grey", "dash"), 203, _PERCENT),
    _fraction(
        "GR_ENGINE_ACTIVE", 1001, 1, "GR_ENGINE_UTIL_RATIO", LineStyle("engine active", "purple", "dash")
    ),
    _fraction("SM_ACTIVE", 1002, 2, "SM_UTIL_RATIO", LineStyle("SM active", "blue")),
    _fraction("SM_OCCUPANCY", 1003, 3, "SM_OCCUPANCY_RATIO", LineStyle("SM occupancy", "brown", "dot")),
    _fraction(
        "PIPE_TENSOR_ACTIVE", 1004, 5, "TENSOR_UTIL_RATIO", LineStyle("tensor active", "orange", "dot")
    ),
    _fraction("DRAM_ACTIVE", 1005, 10, "DRAM_UTIL_RATIO", LineStyle("DRAM active", "green", "dashdot")),
    _fraction("PIPE_FP64_ACTIVE", 1006, 11, "FP64_UTIL_RATIO"),
    _fraction("PIPE_FP32_ACTIVE", 1007, 12, "FP32_UTIL_RATIO", LineStyle("FP32 active", "forest", "dashdot")),
    _fraction("PIPE_FP16_ACTIVE", 1008, 13, "FP16_UTIL_RATIO"),
    _rate("PCIE_TX_BYTES", 1009, 20, _link("PCIe out", "grey", "dash")),
    _rate("PCIE_RX_BYTES", 1010, 21, _link("PCIe in", "green", "dashdot")),
    _rate("NVLINK_TX_BYTES", 1011, 61, _link("NVLink out", "orange", "dot")),
    _rate("NVLINK_RX_BYTES", 1012, 60, _link("NVLink in", "blue", "solid")),
    Metric("FB_USED", "B", LineStyle("memory", "purple", "dash", percent_of="FB_TOTAL"), 252, MIB),
    Metric("FB_TOTAL", "B", None, 250, MIB),
    Metric("POWER_USAGE", "W", LineStyle("power", "orange", "solid", "W", 1.0), 155),
    Metric("GPU_TEMP", "°C", LineStyle("temperature", "brown", "solid", "°C", 1.0), 150),
    Metric("SM_CLOCK", "MHz", LineStyle("SM clock", "blue", "solid", "MHz", 1.0), 100),
    _fraction("PIPE_INT_ACTIVE", 1016, 4, "INT_UTIL_RATIO"),
    _rate("C2C_TX_ALL_BYTES", 1076, 100, _link("C2C out", "brown", "dot")),
    _rate("C2C_RX_ALL_BYTES", 1078, 101, _link("C2C in", "purple", "solid")),
    Metric("CLOCKS_EVENT_REASONS", "bits", None, 112, 1.0, "CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"),
    Metric("MAX_SM_CLOCK", "MHz", None, 113),
    Metric("TOTAL_ENERGY", "J", None, 156, 1e-3, "TOTAL_ENERGY_CONSUMPTION"),
)

#: Metrics of a GPU that are recorded only on request.
ON_REQUEST: tuple[Metric, ...] = (
    Metric("MEM_COPY_UTIL", "1", None, 204, _PERCENT),
    Metric("ENC_UTIL", "1", None, 206, _PERCENT),
    Metric("DEC_UTIL", "1", None, 207, _PERCENT),
    Metric("FB_FREE", "B", None, 251, MIB),
    Metric("FB_RESERVED", "B", None, 253, MIB),
    Metric("MEM_CLOCK", "MHz", None, 101),
    Metric("MEMORY_TEMP", "°C", None, 140),
    _fraction("PIPE_TENSOR_IMMA_ACTIVE", 1013, 9, "IMMA_UTIL_RATIO"),
    _fraction("PIPE_TENSOR_HMMA_ACTIVE", 1014, 7, "HMMA_UTIL_RATIO"),
    _fraction("PIPE_TENSOR_DFMA_ACTIVE", 1015, 6, "DFMA_UTIL_RATIO"),
    *(
        _fraction(f"{engine}{index}_ACTIVE", dcgm_id + index, gpm_id + index, f"{engine}_UTIL_{index}_RATIO")
        for engine, count, dcgm_id, gpm_id in (
            ("NVDEC", _NVDEC, 1017, 30),
            ("NVJPG", _NVJPG, 1025, 40),
            ("NVOFA", _NVOFA, 1033, 50),
        )
        for index in range(count)
    ),
    # DCGM numbers TX before RX, GPM numbers RX before TX.
    *(
        _rate(f"NVLINK_L{link}_{direction}_BYTES", 1040 + 2 * link + index, 63 + 2 * link - index)
        for link in range(_LINKS)
        for index, direction in enumerate(("TX", "RX"))
    ),
    _rate("C2C_TX_DATA_BYTES", 1077, 102),
    _rate("C2C_RX_DATA_BYTES", 1079, 103),
    *(
        Metric(
            f"{memory}MEM_CACHE_{result}", "1", None, dcgm_id, _PERCENT, gpm_id=gpm_id, gpm_factor=_PERCENT
        )
        for memory, result, dcgm_id, gpm_id in (
            ("HOST", "HIT", 1080, 160),
            ("HOST", "MISS", 1081, 161),
            ("PEER", "HIT", 1082, 162),
            ("PEER", "MISS", 1083, 163),
        )
    ),
)

#: Metrics that are recorded of the host, as one job sees it.
HOST: tuple[Metric, ...] = (
    Metric("CPU_UTIL", "1", LineStyle("CPU", "blue")),
    Metric("CPU_CORES_USED", "cores"),
    Metric("MEMORY_USED", "B", LineStyle("memory", "pink", "dash", percent_of="MEMORY_TOTAL")),
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
    Metric("HOST_POWER", "W"),
)

#: Metrics that are recorded of each fast NIC of the node: Slingshot, InfiniBand, RoCE.
NIC: tuple[Metric, ...] = (
    Metric("NIC_TX_BYTES", "B/s", _link("NIC out", "orange", "dot")),
    Metric("NIC_RX_BYTES", "B/s", _link("NIC in", "blue", "solid")),
    # What it counts depends on the NIC: pauses of Slingshot, waiting ticks of InfiniBand, CNPs of RoCE.
    Metric("NIC_PAUSES", "1/s", LineStyle("NIC pauses", "purple", "dash", "1/s", 1.0)),
    Metric("NIC_ERRORS", "1/s", LineStyle("NIC errors", "brown", "solid", "1/s", 1.0)),
)

#: Every metric by its name.
TABLE: Mapping[str, Metric] = {metric.name: metric for metric in (*GPU, *ON_REQUEST, *HOST, *NIC)}

#: Units by metric: always recorded of a GPU, of the host, and recorded of a GPU only on request.
GPU_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in GPU}
HOST_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in HOST}
NIC_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in NIC}
EXTRA_METRICS: Mapping[str, str] = {metric.name: metric.unit for metric in ON_REQUEST}
#: Units of the metrics that are always recorded, by kind of device.
METRICS: Mapping[str, Mapping[str, str]] = {"gpu": GPU_METRICS, "host": HOST_METRICS, "nic": NIC_METRICS}

#: Metrics by DCGM field id.
DCGM_FIELDS: Mapping[int, Metric] = {metric.dcgm_id: metric for metric in TABLE.values() if metric.dcgm_id}

#: Intermediate results of the score that a recorder stores each second for fine samples (10 Hz), so that a
#: score of one-second means equals the score of the fine samples. Each is a mean over the second, in which
#: time that cannot be scored counts as 0. SHARE is the share of the second that can be scored. RUNNING and
#: BUSY are two levels of the loss breakdown. LOWER_BOUND is the lowest possible score. SPREAD is the standard
#: deviation of the engine's activity within the second. POINTS, BINDING_SHARE and SEQUENTIAL_POINTS, by
#: resource, are those of ``saturation.levels.Levels``.
SCORE_PARTS: Mapping[str, str] = dict.fromkeys(
    (
        "SCORE_SHARE",
        "SCORE_RUNNING",
        "SCORE_BUSY",
        "SCORE_LOWER_BOUND",
        "SCORE_SPREAD",
        *(
            f"SCORE_{part}_{resource}"
            for part in ("POINTS", "BINDING_SHARE", "SEQUENTIAL_POINTS")
            for resource in ("COMPUTE", "MEMORY", "INTERCONNECT")
        ),
    ),
    "1",
)


#: Meaning of each metric; ``#`` stands for a number in its name.
_MEANINGS: Mapping[str, str] = {
    "GPU_UTIL": "share of time in which at least one kernel ran, however few units it used",
    "GR_ENGINE_ACTIVE": "share of time in which the graphics or compute engine was busy",
    "SM_ACTIVE": "share of time in which a multiprocessor had at least one warp, mean over all",
    "SM_OCCUPANCY": "resident warps as a share of the maximum number, mean over all multiprocessors",
    "PIPE_TENSOR_ACTIVE": "share of cycles in which the tensor cores were busy",
    "DRAM_ACTIVE": "share of cycles in which the GPU memory's interface moved data",
    "PIPE_FP64_ACTIVE": "share of cycles in which the FP64 pipe was busy",
    "PIPE_FP32_ACTIVE": "share of cycles in which the FP32 pipe was busy",
    "PIPE_FP16_ACTIVE": "share of cycles in which the FP16 pipe was busy, without tensor cores",
    "PIPE_INT_ACTIVE": "share of cycles in which the integer pipe was busy",
    "PIPE_TENSOR_IMMA_ACTIVE": "share of cycles in which tensor cores were busy with integers",
    "PIPE_TENSOR_HMMA_ACTIVE": "share of cycles in which tensor cores were busy with half precision",
    "PIPE_TENSOR_DFMA_ACTIVE": "share of cycles in which tensor cores were busy with FP64",
    "PCIE_TX_BYTES": "bytes that the GPU sent over PCIe",
    "PCIE_RX_BYTES": "bytes that the GPU received over PCIe",
    "NVLINK_TX_BYTES": "bytes that the GPU sent over all NVLinks",
    "NVLINK_RX_BYTES": "bytes that the GPU received over all NVLinks",
    "NVLINK_L#_TX_BYTES": "bytes that the GPU sent over NVLink #",
    "NVLINK_L#_RX_BYTES": "bytes that the GPU received over NVLink #",
    "C2C_TX_ALL_BYTES": "bytes that the GPU sent to its CPU over NVLink-C2C",
    "C2C_RX_ALL_BYTES": "bytes that the GPU received from its CPU over NVLink-C2C",
    "C2C_TX_DATA_BYTES": "bytes of data, without protocol, that the GPU sent to its CPU over NVLink-C2C",
    "C2C_RX_DATA_BYTES": "bytes of data, without protocol, that the GPU received over NVLink-C2C",
    "FB_USED": "GPU memory in use, without what the driver reserves",
    "FB_TOTAL": "GPU memory",
    "FB_FREE": "GPU memory that is free",
    "FB_RESERVED": "GPU memory that the driver reserves",
    "POWER_USAGE": "power of the GPU's board",
    "TOTAL_ENERGY": "energy since the driver was loaded; a counter",
    "GPU_TEMP": "temperature of the GPU",
    "MEMORY_TEMP": "temperature of the GPU's memory",
    "SM_CLOCK": "clock of the multiprocessors",
    "MAX_SM_CLOCK": "highest clock of the multiprocessors",
    "MEM_CLOCK": "clock of the GPU's memory",
    "CLOCKS_EVENT_REASONS": "why the clock is below its highest value, bits of nvmlClocksEventReasons",
    "MEM_COPY_UTIL": "share of time in which GPU memory was read or written",
    "ENC_UTIL": "share of time in which the video encoders were busy",
    "DEC_UTIL": "share of time in which the video decoders were busy",
    "NVDEC#_ACTIVE": "share of time in which video decoder # was busy",
    "NVJPG#_ACTIVE": "share of time in which JPEG decoder # was busy",
    "NVOFA#_ACTIVE": "share of time in which optical flow engine # was busy",
    "HOSTMEM_CACHE_HIT": "share of accesses to host memory that the GPU's cache answered",
    "HOSTMEM_CACHE_MISS": "share of accesses to host memory that the GPU's cache did not answer",
    "PEERMEM_CACHE_HIT": "share of accesses to other GPUs' memory that the GPU's cache answered",
    "PEERMEM_CACHE_MISS": "share of accesses to other GPUs' memory that the GPU's cache did not answer",
    "CPU_UTIL": "share of the job's CPU cores that were busy",
    "CPU_CORES_USED": "CPU cores that were busy",
    "MEMORY_USED": "host memory of the job",
    "MEMORY_TOTAL": "host memory that the job may use",
    "IO_READ_BYTES": "bytes that the job read from storage",
    "IO_WRITE_BYTES": "bytes that the job wrote to storage",
    "PRESSURE_CPU": "share of time in which processes of the job waited for a core",
    "PRESSURE_MEMORY": "share of time in which processes of the job waited for memory",
    "PRESSURE_IO": "share of time in which processes of the job waited for storage",
    "NET_TX_BYTES": "bytes that the node sent over all networks",
    "NET_RX_BYTES": "bytes that the node received over all networks",
    "PAGE_FAULTS_MINOR": "page faults without reading from storage",
    "PAGE_FAULTS_MAJOR": "page faults that read from storage",
    "LUSTRE_READ_BYTES": "bytes that the node read from Lustre",
    "LUSTRE_WRITE_BYTES": "bytes that the node wrote to Lustre",
    "LUSTRE_METADATA_OPS": "operations of the node on Lustre's metadata server",
    "NFS_READ_BYTES": "bytes that the node read from NFS",
    "NFS_WRITE_BYTES": "bytes that the node wrote to NFS",
    "HOST_POWER": "power of the node's processors and memory",
    "NIC_TX_BYTES": "bytes that the NIC sends for all processes of the node",
    "NIC_RX_BYTES": "bytes that the NIC receives for all processes of the node",
    "NIC_PAUSES": "pauses of Slingshot, waiting ticks of InfiniBand, congestion notifications of RoCE",
    "NIC_ERRORS": "sum of the increases of all error counters of the NIC",
}


def meaning_of(metric: str) -> str:
    """Return the meaning of a metric as a clause; an empty string for an unknown metric."""
    if metric in SCORE_PARTS:
        return "intermediate result of the score of fine samples"
    if metric not in TABLE:
        return ""
    number = re.search(r"\d+(?=_)", metric)
    text = _MEANINGS.get(metric) or _MEANINGS.get(re.sub(r"\d+(?=_)", "#", metric), "")
    return text.replace("#", number[0]) if number else text


def unit_of(metric: str) -> str:
    """Return the unit of a metric; an empty string for an unknown metric."""
    known = TABLE.get(metric)
    return known.unit if known is not None else SCORE_PARTS.get(metric, "")
