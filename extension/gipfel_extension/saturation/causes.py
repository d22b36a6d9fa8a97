"""The losses of one GPU, sample by sample: its steps, each put down to what there is evidence for.

Evidence of why a GPU waits: what its host, its links and the other GPUs of the job did at that time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..telemetry.sample import Columns, Device, SampleTable
from .host_signs import HostSigns, both_ways, host_of, host_signs
from .levels import Flags, Floats, Levels, column, fractions
from .loss_breakdown import Staircase
from .settings import LOSSES, Thresholds
from .time_grid import Beats, crowd, nearest

#: A pipe's activity per SM activity from which kernels compute; one that waits in a collective only spins.
_COMPUTES = 0.08
#: How much more a link must receive than it sends for its bytes to be input.
_ONE_WAY = 3.0
#: Share of a link's ceiling in both directions that is talk between GPUs where they have no NVLink.
_BOTH_WAYS = 0.2
#: Bytes per second from which GPUs or nodes exchange anything at all.
_ANY_TRAFFIC = 1e8
VIDEO = tuple(f"NVDEC{engine}_ACTIVE" for engine in range(8))


@dataclass(frozen=True)
class Signs:
    """One GPU's evidence, one value per sample.

    Parameters
    ----------
    writes
        A host of the job writes a burst.
    talks
        Links or network carry data both ways, and the job has several GPUs.
    loads
        Input is on its way: the host reads, decodes on workers beside the launching thread, or copies to
        the GPU.
    decodes
        A video decoder is busy.
    lags
        How much of the GPU's waiting goes by with a slower GPU of the job at work.
    launches
        Nothing runs for moments far below a second, while a thread of the host is busy.
    rests
        The host does nothing either.
    computes
        Kernels on few SMs compute, and don't wait for other GPUs; in a job of one GPU all do.
    sparse
        SMs hold few warps, and the power says that units wait.
    """

    writes: Flags
    talks: Flags
    loads: Flags
    decodes: Flags
    lags: Floats
    launches: Flags
    rests: Flags
    computes: Flags
    sparse: Flags


class Observer:
    """Reads evidence off a table.

    Parameters
    ----------
    gpus
        Levels and steps of the GPUs that worked at all, by UUID: the others wait for nothing.
    """

    def __init__(
        self,
        table: SampleTable,
        beats: Beats,
        thresholds: Thresholds,
        gpus: Mapping[str, tuple[Levels, Staircase]],
        watts: Mapping[str, float],
    ) -> None:
        self._table = table
        self._beats = beats
        self._limits = thresholds
        self._gpus = gpus
        self._watts = watts
        self._several = len(table.gpus) > 1
        self._window = max(1, round(thresholds.lag_seconds / beats.interval))
        places = {uuid: beats.places(levels.time_ns)[0] for uuid, (levels, _) in gpus.items()}
        length = len(beats.occupied)
        self._now = crowd([(places[uuid], steps.busy) for uuid, (_, steps) in gpus.items()], length)
        self._lately = crowd(
            [(places[uuid], self._beside_itself(steps)) for uuid, (_, steps) in gpus.items()], length
        )
        real = {gpu.simulated for gpu in table.gpus}
        hosts = [host for host in table.hosts if host.simulated in real]
        self._hosts = {host.uuid: host_signs(table, host, thresholds) for host in hosts}
        self._writing = self._bursts(hosts)
        self._together = self._several and self._any_traffic(hosts)

    def signs(self, gpu: Device) -> Signs:
        """Return the evidence for one GPU that worked."""
        levels, steps = self._gpus[gpu.uuid]
        columns = self._table.of(gpu.uuid)
        places, _ = self._beats.places(levels.time_ns)
        with np.errstate(invalid="ignore", divide="ignore"):
            talks, loads, launching, rests = self._host(gpu, levels)
            return Signs(
                self._writing[places],
                (talks | self._links(levels, columns)) & self._several,
                loads | _copies(levels, columns, self._limits),
                decodes(columns, self._limits.decoder),
                self._lags(steps, places) if self._together else np.zeros(len(places)),
                launching & self._small_gaps(levels),
                rests,
                self._computes(levels),
                self._sparse(gpu, levels, columns),
            )

    def _host(self, gpu: Device, levels: Levels) -> tuple[Flags, Flags, Flags, Flags]:
        host = host_of(self._table, gpu)
        signs: HostSigns | None = self._hosts.get(host.uuid) if host else None
        if host is None or signs is None or not len(signs.talks):
            return (np.zeros(len(levels.time_ns), np.bool_),) * 4
        rows, near = nearest(
            levels.time_ns, self._table.of(host.uuid)["time_ns"], 1.5e9 * self._beats.interval
        )
        every = (signs.talks, signs.loads, signs.busy, signs.rests)
        talks, loads, busy, rests = (near & flags[rows] for flags in every)
        return talks, loads, busy, rests

    def _any_traffic(self, hosts: Sequence[Device]) -> bool:
        """Return whether GPUs may wait for each other: they exchange anything, or that isn't recorded."""
        links = [column(self._table.of(uuid), "NVLINK_TX_BYTES") for uuid in self._gpus]
        network = [both_ways(self._table.of(host.uuid)) for host in hosts] if len(hosts) > 1 else []
        seen = [each[np.isfinite(each)] for each in (*links, *network)]
        return any(not len(each) or each.max() >= _ANY_TRAFFIC for each in seen)

    def _links(self, levels: Levels, columns: Columns) -> Flags:
        """Return where GPUs talk over NVLink or, in models without it, both ways over PCIe."""
        if "nvlink" in levels.links:
            return np.asarray(levels.links["nvlink"] >= self._limits.link, np.bool_)
        least = np.minimum(column(columns, "PCIE_TX_BYTES"), column(columns, "PCIE_RX_BYTES"))
        most = np.maximum(column(columns, "PCIE_TX_BYTES"), column(columns, "PCIE_RX_BYTES"))
        level = levels.links.get("pcie", np.full(len(least), np.nan)) * least / most
        return np.asarray(level >= _BOTH_WAYS, np.bool_)

    def _lags(self, steps: Staircase, places: np.typing.NDArray[np.int64]) -> Floats:
        """Return what of the waiting is for a slower GPU: at the moment, or over some seconds.

        A rank that is a little slower makes the others wait for a part of each step. That shows in means over
        several steps, whose difference is then put down to the moments in which the others wait.
        """
        top, middle = (each[places] for each in self._now)
        now = np.where(top - middle >= self._limits.wait, top - np.fmax(middle, steps.busy), 0.0)
        top, middle = (each[places] for each in self._lately)
        own = self._beside_itself(steps)
        behind = np.where(top - np.fmax(middle, own) >= self._limits.lag, (top - own) * _usual(steps), 0.0)
        now = np.maximum(0.0, np.nan_to_num(now))
        # What the moments show already is not counted again.
        more = behind - _smooth(now, self._window)
        waits = np.maximum(0.0, steps.off + steps.empty - now)
        share = np.clip(more / np.maximum(1e-9, _smooth(waits, self._window)), 0.0, 1.0)
        lags: Floats = now + np.nan_to_num(share * waits)
        return lags

    def _computes(self, levels: Levels) -> Flags:
        if not self._several:
            return np.ones(len(levels.time_ns), np.bool_)
        if self._beats.interval > self._limits.fine:
            # Large kernels and waiting for others within one sample look like small kernels.
            return np.zeros(len(levels.time_ns), np.bool_)
        return _throughout(levels.math >= _COMPUTES * levels.active)

    def _beside_itself(self, steps: Staircase) -> Floats:
        """Return how busy a GPU was over some seconds, beside its own usual level: kernels differ."""
        usual = _usual(steps)
        return _smooth(np.minimum(1.0, steps.busy / usual) if usual else steps.busy, self._window)

    def _small_gaps(self, levels: Levels) -> Flags:
        """Return where the engine is on for a steady part of the time: its pauses are short."""
        if levels.parts:
            spread = levels.parts["SCORE_SPREAD"]
            return np.asarray(
                (levels.engine > 0.05) & (spread <= self._limits.steady * levels.engine), np.bool_
            )
        if self._beats.interval > self._limits.fine:
            return np.zeros(len(levels.time_ns), np.bool_)
        window = max(3, round(1.0 / self._beats.interval))
        mean = _smooth(levels.engine, window)
        spread = np.sqrt(np.maximum(0.0, _smooth(levels.engine**2, window) - mean**2))
        return np.asarray((mean > 0.05) & (spread <= self._limits.steady * mean), np.bool_)

    def _sparse(self, gpu: Device, levels: Levels, columns: Columns) -> Flags:
        warps = fractions(columns, "SM_OCCUPANCY") / levels.active
        power = column(columns, "POWER_USAGE") / (self._watts.get(gpu.uuid) or np.nan)
        return np.asarray((warps <= self._limits.sparse) & (power <= self._limits.power), np.bool_)

    def _bursts(self, hosts: Sequence[Device]) -> Flags:
        """Return whether any host of the job writes a burst at each beat."""
        writing = np.zeros(len(self._beats.occupied), np.bool_)
        for host in hosts:
            times = self._table.of(host.uuid)["time_ns"][self._hosts[host.uuid].writes]
            places, there = self._beats.places(times)
            writing[places[there]] = True
        return writing


def _copies(levels: Levels, columns: Columns, limits: Thresholds) -> Flags:
    """Return where data comes from the host, and hardly any goes back."""
    found = np.zeros(len(levels.time_ns), np.bool_)
    for link, (to_host, from_host) in (
        ("pcie", ("PCIE_TX_BYTES", "PCIE_RX_BYTES")),
        ("c2c", ("C2C_TX_ALL_BYTES", "C2C_RX_ALL_BYTES")),
    ):
        level = levels.links.get(link)
        if level is not None:
            one_way = column(columns, from_host) >= _ONE_WAY * column(columns, to_host)
            found |= np.asarray((level >= limits.copies) & one_way, np.bool_)
    return found


def _usual(steps: Staircase) -> float:
    """Return the level of SMs with work that a GPU reaches in a tenth of the time."""
    known = steps.busy[np.isfinite(steps.busy)]
    return float(np.quantile(known, 0.9)) if len(known) else 0.0


def _throughout(flags: Flags) -> Flags:
    """Return where a flag holds for the neighbours too: a sample in which a phase ends is a mean of two."""
    before, after = np.append(True, flags[:-1]), np.append(flags[1:], True)
    return np.asarray(flags & before & after, np.bool_)


def decodes(columns: Columns, least: float) -> Flags:
    """Return where a video decoder is that busy; False where none is recorded."""
    found = np.zeros(len(columns["time_ns"]), np.bool_)
    for metric in (*VIDEO, "DEC_UTIL"):
        if metric in columns:
            found |= np.asarray(fractions(columns, metric) >= least, np.bool_)
    return found


def _smooth(values: Floats, window: int) -> Floats:
    """Return means over so many samples around each; unknown ones don't count."""
    known = np.isfinite(values)
    sums = np.cumsum(np.concatenate([[0.0], np.where(known, values, 0.0)]))
    counts = np.cumsum(np.concatenate([[0], known]))
    ends = np.minimum(len(values), np.arange(len(values)) + (window + 1) // 2)
    starts = np.maximum(0, np.arange(len(values)) - window // 2)
    counted = counts[ends] - counts[starts]
    means: Floats = np.where(counted > 0, (sums[ends] - sums[starts]) / np.maximum(1, counted), np.nan)
    return means


def losses_of(
    levels: Levels, steps: Staircase, signs: Signs | None, before_work: Flags
) -> Mapping[str, Floats]:
    """Return losses that add up, with the saturation, to 1 in every known sample, and are NaN in the others.

    What no recorded series gives evidence for is ``unexplained``.

    Parameters
    ----------
    signs
        None for a GPU that never worked: it waited for nothing, so all that was off is ``idle``.
    before_work
        The samples before the job's work began, whose loss is ``start_up``, whatever was seen.
    """
    zero = np.zeros_like(steps.off)
    if signs is None:
        found = {"idle": steps.off, "launch": steps.empty, "unexplained": steps.waiting}
    else:
        found = _found(levels, steps, signs)
    losses = {name: np.where(before_work, zero, found.get(name, zero)) for name in LOSSES}
    losses["start_up"] = np.where(before_work, 1.0 - levels.saturation, zero)
    return losses


def _found(levels: Levels, steps: Staircase, signs: Signs) -> dict[str, Floats]:
    # What is certain first: what one cause explains, the next ones can't explain again.
    off, writes_off = _take(steps.off, signs.writes)
    off, talks_off = _take(off, signs.talks)
    off, loads = _take(off, signs.loads | signs.decodes)
    lags_off = np.minimum(off, signs.lags)
    off, launches_off = _take(off - lags_off, signs.launches)
    off, rests = _take(off, signs.rests)
    # A rank that waits for the others has a kernel that spins on few SMs: it is not off, but empty.
    empty, writes_empty = _take(steps.empty, signs.writes)
    empty, talks_empty = _take(empty, signs.talks)
    empty, decodes_empty = _take(empty, signs.decodes)
    lags_empty = np.minimum(empty, np.maximum(0.0, signs.lags - lags_off))
    empty, launches_empty = _take(empty - lags_empty, signs.computes)
    capped = _lost_clock(levels, steps)
    waiting, sparse = _take(steps.waiting - capped, signs.sparse)
    return {
        "idle": rests,
        "input": loads + decodes_empty,
        "launch": launches_off + launches_empty,
        "occupancy": sparse,
        "imbalance": lags_off + lags_empty,
        "communication": talks_off + talks_empty,
        "checkpoint": writes_off + writes_empty,
        "capped": capped,
        "unexplained": off + empty + waiting,
    }


def _lost_clock(levels: Levels, steps: Staircase) -> Floats:
    """Return what the clock below its maximum explains: at full clock, SMs would do their work in less time.

    Memory and links have clocks of their own: time in which they bind is not lost by the SMs' clock.
    """
    others = np.nan_to_num(np.fmax(levels.resources["memory"], levels.resources["interconnect"]))
    work = np.maximum(0.0, steps.busy - others)
    work = np.where(levels.pipes >= others, np.fmax(work, levels.pipes), work)
    capped: Floats = np.minimum(steps.waiting, (1.0 - levels.clock) * work)
    return capped


def _take(step: Floats, sign: Flags) -> tuple[Floats, Floats]:
    """Return what is left of a step, and what a sign takes of it."""
    return np.where(sign, 0.0 * step, step), np.where(sign, step, 0.0 * step)
