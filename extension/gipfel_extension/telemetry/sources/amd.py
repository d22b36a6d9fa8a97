"""AMD GPUs through AMD SMI, with DCGM's metric names where the meaning is the same.

AMD SMI has no counterpart of SM_ACTIVE, of occupancy and of the pipes: these values are missing.
``umc_activity``, the share of time in which the memory controller was busy, corresponds to NVML's memory
utilization.
"""

from functools import partial
from typing import Any

from ..events import Event
from ..metric_table import GPU_METRICS, MIB
from ..sample import Device, Sample, SourceError
from . import Source, SourceRequest, attempt, import_library
from .counters import GpuHealth, amd_counters
from .job_gpus import job_gpus

_KIB = 1024.0
#: Throttle reasons as bits of NVML's ``nvmlClocksEventReasons``: power, temperature, hardware slowdown.
_REASONS = {
    "active_ppt_pwr": 0x4,
    "active_socket_thrm": 0x40,
    "active_hbm_thrm": 0x40,
    "active_vr_thrm": 0x40,
    "active_prochot_thrm": 0x8,
}

_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
#: Metrics that this source provides on request, in addition to those that are always recorded.
EXTRA = ("MEM_COPY_UTIL",)


class AmdSource(Source):
    """The job's GPUs, by UUID.

    Parameters
    ----------
    library
        AMD SMI 7's Python module; None imports it.

    Raises
    ------
    SourceError
        ROCm is not installed, or the job has no GPU.
    """

    name = "amdsmi"
    extra = EXTRA

    def __init__(self, request: SourceRequest, *, library: Any = None) -> None:
        self._clock = request.clock
        self._smi = library or import_library(
            "amdsmi", "AMD SMI's Python module can't be imported.", "Install ROCm with its amdsmi."
        )
        self._try = partial(attempt, self._smi.AmdSmiException)
        try:
            self._smi.amdsmi_init()
        except self._smi.AmdSmiException as error:
            raise SourceError(
                f"AMD SMI can't be opened: {error}.", "Check that amd-smi works on this node."
            ) from error
        try:
            self._gpus = self._choose(request)
        except BaseException:
            self._smi.amdsmi_shut_down()
            raise
        self.devices: tuple[Device, ...] = tuple(device for device, _ in self._gpus)
        self._health = GpuHealth(
            {device.uuid: partial(amd_counters, self._smi, handle) for device, handle in self._gpus},
            node=request.environment.get("GIPFEL_NODE", ""),
            clock=request.clock,
        )
        self._before: dict[tuple[str, str], tuple[int, float]] = {}

    def read(self) -> list[Sample]:
        """Return one sample per GPU; unavailable values are None."""
        samples = []
        for device, handle in self._gpus:
            time_ns, now_ns = self._clock.time_ns(), self._clock.monotonic_ns()
            values: dict[str, float | None] = dict.fromkeys((*GPU_METRICS, *EXTRA))
            values.update(self._plain(handle))
            values.update(self._links(device.uuid, handle, now_ns))
            samples.append(Sample(time_ns, now_ns, device.uuid, values))
        return samples

    def events(self) -> list[Event]:
        """Return rising error counters since the last call."""
        return self._health.poll()

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes that use the job's GPUs, each with the GPU's UUID."""
        return [
            (each["pid"], device.uuid)
            for device, handle in self._gpus
            for each in self._try(self._smi.amdsmi_get_gpu_process_list, handle) or ()
            if isinstance(each, dict) and isinstance(each.get("pid"), int)
        ]

    def close(self) -> None:
        """Shut AMD SMI down."""
        self._smi.amdsmi_shut_down()

    def _choose(self, request: SourceRequest) -> tuple[tuple[Device, Any], ...]:
        smi = self._smi
        node = request.environment.get("GIPFEL_NODE", "")
        found = []
        for index, handle in enumerate(self._try(smi.amdsmi_get_processor_handles) or ()):
            uuid = self._try(smi.amdsmi_get_gpu_device_uuid, handle)
            about = self._try(smi.amdsmi_get_gpu_asic_info, handle) or {}
            if uuid:
                # ROCm's environment variables name a GPU in this form.
                name = f"GPU-{str(uuid).removeprefix('GPU-')}"
                found.append(
                    (Device(name, "gpu", str(about.get("market_name", "AMD GPU")), index, node=node), handle)
                )
        visible = {device.uuid: device.index for device, _ in found}
        set_variables = [name for name in _VARIABLES if name in request.environment]
        own = job_gpus(visible, request.environment, variables=set_variables[:1])
        if not own:
            raise SourceError("This job has no GPU.", "Request a GPU when you start the job.")
        return tuple(each for each in found if each[0].uuid in own)

    def _plain(self, handle: Any) -> dict[str, float | None]:
        smi = self._smi
        activity = self._try(smi.amdsmi_get_gpu_activity, handle) or {}
        memory = self._try(smi.amdsmi_get_gpu_vram_usage, handle) or {}
        power = self._try(smi.amdsmi_get_power_info, handle) or {}
        clock = self._try(smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX) or {}
        temperature = self._try(
            smi.amdsmi_get_temp_metric,
            handle,
            smi.AmdSmiTemperatureType.HOTSPOT,
            smi.AmdSmiTemperatureMetric.CURRENT,
        )
        return {
            "GPU_UTIL": _scaled(activity.get("gfx_activity"), 0.01),
            "MEM_COPY_UTIL": _scaled(activity.get("umc_activity"), 0.01),
            "FB_USED": _scaled(memory.get("vram_used"), MIB),
            "FB_TOTAL": _scaled(memory.get("vram_total"), MIB),
            "POWER_USAGE": _scaled(power.get("current_socket_power"), 1.0)
            or _scaled(power.get("average_socket_power"), 1.0),
            "SM_CLOCK": _scaled(clock.get("clk"), 1.0),
            "MAX_SM_CLOCK": _scaled(clock.get("max_clk"), 1.0),
            "GPU_TEMP": _scaled(temperature, 1.0),
            "CLOCKS_EVENT_REASONS": self._reasons(handle),
        }

    def _reasons(self, handle: Any) -> float | None:
        status = self._try(self._smi.amdsmi_get_violation_status, handle)
        if not isinstance(status, dict):
            return None
        known = {name: status[name] for name in _REASONS if isinstance(status.get(name), bool | int)}
        return float(sum({_REASONS[name] for name in known if known[name]})) if known else None

    def _links(self, uuid: str, handle: Any, now_ns: int) -> dict[str, float | None]:
        """Return the rates of XGMI, the links between GPUs, as NVLink metrics; XGMI counts KiB."""
        metrics = self._try(self._smi.amdsmi_get_gpu_metrics_info, handle) or {}
        values: dict[str, float | None] = {}
        for metric, counter in (
            ("NVLINK_RX_BYTES", "xgmi_read_data_acc"),
            ("NVLINK_TX_BYTES", "xgmi_write_data_acc"),
        ):
            counts = (_scaled(each, _KIB) for each in metrics.get(counter) or ())
            known = [count for count in counts if count is not None]
            if not known:
                continue
            total = sum(known)
            then_ns, before = self._before.get((uuid, metric), (now_ns, total))
            self._before[(uuid, metric)] = (now_ns, total)
            if now_ns > then_ns:
                values[metric] = max(0.0, total - before) * 1e9 / (now_ns - then_ns)
        return values


def _scaled(value: Any, factor: float) -> float | None:
    # AMD SMI returns "N/A" for unavailable values.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        return None
    return float(value) * factor
