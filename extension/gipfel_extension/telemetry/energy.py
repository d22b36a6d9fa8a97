"""Energy of a recording in Wh: of each GPU, rank and host, and their sums.

A GPU's energy is the increase of its own counter (``TOTAL_ENERGY``), which misses nothing between samples.
Where a GPU has no counter, its power is integrated. A host's energy is that of the processors and memory of
the whole node (``HOST_POWER``). CO2 is reported only with the site's factor, `CO2_VARIABLE`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .sample import Columns, Device, SampleTable

#: Grams of CO2 equivalent per kWh of the site's electricity; a site sets it in the environment of its jobs.
CO2_VARIABLE = "GIPFEL_CO2_G_PER_KWH"
#: A larger factor must be in another unit: electricity from coal causes about 1 000 g/kWh.
_MAX_FACTOR = 5000.0
_JOULES_PER_WH = 3600.0
#: Power is not integrated over a gap between two samples longer than this, in sampling intervals and at least
#: in seconds: the power within the gap is unknown.
_MAX_GAP_INTERVALS, _MIN_GAP_S = 5.0, 10.0
_DIGITS = 4

Method = Literal["counter", "power", ""]
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DeviceEnergy:
    """Energy of a GPU or a host.

    Parameters
    ----------
    wh
        None where neither a counter nor power was recorded.
    method
        ``counter``: difference of the device's counter; ``power``: integral of its power; empty without `wh`.
    recorded_s, measured_s
        Seconds from the first sample to the last, and how many of them `wh` covers.
    """

    device: Device
    wh: float | None
    method: Method
    recorded_s: float
    measured_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the energy as a JSON-serializable dictionary."""
        return {
            "uuid": self.device.uuid,
            "node": self.device.node,
            "index": self.device.index,
            "wh": _rounded(self.wh),
            "method": self.method or None,
            "measured_s": round(self.measured_s, 3),
        }


@dataclass(frozen=True)
class RunEnergy:
    """Energy of a recording.

    Parameters
    ----------
    ranks
        Wh by rank: the sum of its GPUs; a GPU that several ranks share counts in equal parts. None where the
        energy of one of them is unknown.
    co2_g_per_kwh
        The site's factor; None where it set none.
    simulated
        True where any of the devices is simulated.
    """

    gpus: tuple[DeviceEnergy, ...] = ()
    hosts: tuple[DeviceEnergy, ...] = ()
    ranks: tuple[tuple[int, float | None], ...] = ()
    co2_g_per_kwh: float | None = None
    simulated: bool = False

    @property
    def gpu_wh(self) -> float | None:
        """Sum of the GPUs whose energy is known; None where there is none."""
        return _sum(self.gpus)

    @property
    def host_wh(self) -> float | None:
        """Sum of the hosts whose energy is known; None where there is none."""
        return _sum(self.hosts)

    @property
    def total_wh(self) -> float | None:
        """Sum of GPUs and hosts whose energy is known; None where there is none."""
        return _sum((*self.gpus, *self.hosts))

    @property
    def gpu_hours(self) -> float:
        """Recorded hours of all GPUs together."""
        return sum(each.recorded_s for each in self.gpus) / 3600

    @property
    def coverage(self) -> float | None:
        """Share of the GPUs' recorded time that their energy covers, 0 to 1; None without GPUs."""
        recorded = sum(each.recorded_s for each in self.gpus)
        return sum(each.measured_s for each in self.gpus) / recorded if recorded else None

    @property
    def co2_g(self) -> float | None:
        """Grams of CO2 equivalent; None without the site's factor or without energy."""
        if self.co2_g_per_kwh is None or self.total_wh is None:
            return None
        return self.total_wh / 1000 * self.co2_g_per_kwh

    @property
    def sentence(self) -> str:
        """The energy in one line; empty where it is unknown."""
        if self.total_wh is None:
            return ""
        known = sum(each.wh is not None for each in self.gpus)
        parts = []
        if self.gpu_wh is not None:
            counted = f"{known}" if known == len(self.gpus) else f"{known} of {len(self.gpus)}"
            parts.append(f"{_wh_text(self.gpu_wh)} of {counted} GPU{'' if counted == '1' else 's'}")
        if self.host_wh is not None:
            parts.append(f"{_wh_text(self.host_wh)} of the nodes' processors and memory")
        if self.co2_g is not None:
            parts.append(f"{self.co2_g:.3g} g CO2 at {self.co2_g_per_kwh:g} g/kWh")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the energy as a JSON-serializable dictionary; unknown numbers are None."""
        return {
            "sentence": self.sentence,
            "total_wh": _rounded(self.total_wh),
            "gpu_wh": _rounded(self.gpu_wh),
            "host_wh": _rounded(self.host_wh),
            "gpu_hours": _rounded(self.gpu_hours),
            "coverage": _rounded(self.coverage),
            "co2_g": _rounded(self.co2_g),
            "co2_g_per_kwh": self.co2_g_per_kwh,
            "simulated": self.simulated,
            "gpus": [each.to_json() for each in self.gpus],
            "hosts": [each.to_json() for each in self.hosts],
            "ranks": [{"rank": rank, "wh": _rounded(wh)} for rank, wh in self.ranks],
        }


def energy_of(
    table: SampleTable,
    ranks: Mapping[int, Sequence[str]] | None = None,
    environment: Mapping[str, str] | None = None,
) -> RunEnergy:
    """Return the energy of a table of samples, which must not be bucket means read from summary files.

    Parameters
    ----------
    ranks
        UUIDs of the GPUs of each rank.
    environment
        Environment with the site's factor for CO2.
    """
    gpus = tuple(_gpu(device, table[device.uuid], table.interval) for device in table.gpus)
    hosts = tuple(_host(device, table[device.uuid], table.interval) for device in table.hosts)
    simulated = any(each.device.simulated for each in gpus)
    return RunEnergy(gpus, hosts, _by_rank(gpus, ranks or {}), co2_factor(environment or {}), simulated)


def co2_factor(environment: Mapping[str, str]) -> float | None:
    """Return the site's factor in g/kWh; None where it is unset or not a plausible number."""
    try:
        factor = float(environment.get(CO2_VARIABLE, ""))
    except ValueError:
        return None
    return factor if 0 < factor <= _MAX_FACTOR else None


def _gpu(device: Device, columns: Columns, interval: float) -> DeviceEnergy:
    seconds = _seconds(columns)
    recorded = float(seconds[-1]) if len(seconds) else 0.0
    counter = _known(columns, "TOTAL_ENERGY", seconds)
    if len(counter[0]) > 1:
        # The counter is reset when the driver is loaded again.
        joules = float(np.maximum(0.0, np.diff(counter[1])).sum())
        return _energy(device, joules, "counter", recorded, float(counter[0][-1] - counter[0][0]))
    times, watts = _known(columns, "POWER_USAGE", seconds)
    steps = np.diff(times)
    inside = steps <= _max_gap(interval)
    joules = float((0.5 * (watts[1:] + watts[:-1]) * steps)[inside].sum())
    return _energy(device, joules, "power", recorded, float(steps[inside].sum()))


def _host(device: Device, columns: Columns, interval: float) -> DeviceEnergy:
    seconds = _seconds(columns)
    recorded = float(seconds[-1]) if len(seconds) else 0.0
    watts = columns.get("HOST_POWER", np.full(len(seconds), np.nan))
    # A power value is the mean since the previous reading.
    steps = np.diff(seconds)
    inside = np.isfinite(watts[1:]) & (steps <= _max_gap(interval))
    joules = float((watts[1:] * steps)[inside].sum())
    return _energy(device, joules, "counter", recorded, float(steps[inside].sum()))


def _energy(
    device: Device, joules: float, method: Method, recorded_s: float, measured_s: float
) -> DeviceEnergy:
    if measured_s <= 0 or not math.isfinite(joules):
        return DeviceEnergy(device, None, "", recorded_s, 0.0)
    return DeviceEnergy(device, joules / _JOULES_PER_WH, method, recorded_s, measured_s)


def _by_rank(
    gpus: Sequence[DeviceEnergy], ranks: Mapping[int, Sequence[str]]
) -> tuple[tuple[int, float | None], ...]:
    wh = {each.device.uuid: each.wh for each in gpus}
    users = Counter(uuid for own in ranks.values() for uuid in dict.fromkeys(own))
    found: list[tuple[int, float | None]] = []
    for rank, own in sorted(ranks.items()):
        whole = {uuid: wh.get(uuid) for uuid in own}
        parts = [None if each is None else each / users[uuid] for uuid, each in whole.items()]
        known = [part for part in parts if part is not None]
        found.append((rank, sum(known) if known and len(known) == len(parts) else None))
    return tuple(found)


def _seconds(columns: Columns) -> _Floats:
    """Return the times of the samples in seconds since the first one."""
    times = columns["time_ns"]
    return (times - times[0]) / 1e9 if len(times) else np.zeros(0)


def _known(columns: Columns, metric: str, seconds: _Floats) -> tuple[_Floats, _Floats]:
    values = columns.get(metric, np.full(len(seconds), np.nan))
    known = np.isfinite(values)
    return seconds[known], values[known]


def _max_gap(interval: float) -> float:
    return max(_MIN_GAP_S, _MAX_GAP_INTERVALS * interval)


def _sum(devices: Sequence[DeviceEnergy]) -> float | None:
    known = [each.wh for each in devices if each.wh is not None]
    return sum(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def _wh_text(wh: float) -> str:
    return f"{wh / 1000:.3g} kWh" if wh >= 1000 else f"{wh:.3g} Wh"
