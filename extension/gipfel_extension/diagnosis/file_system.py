"""Verdicts on a file system: slowed by this job's own load, slow for everybody, or slow for unknown reasons.

The latency of probes (looking up a name, creating a file, reading 4 KiB) is compared between times with and
without a heavy load from this job. A file system that is slow without this load is slow for everybody. If it
is slow only with the load, other jobs that happen to work at the same times may still be the cause. So the
job's load is shifted along the run, and if shifted loads fit the slow probes as well, the job is not blamed.

Which load is heavy depends on the file system: 10 MB/s saturate a link of 10 MB/s. So a load counts as light
only if it is close to zero, or if the mount kept up with twice as much at another time. For a FUSE mount,
only an upper bound of the bytes is known: everything that the job's processes read and wrote, including
caches and connections.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .verdict import Verdict, cannot_tell

_Floats = NDArray[np.float64]
_Flags = NDArray[np.bool_]

#: Requests (opened files plus MiB moved) per second from which the job's load is heavy for any file system.
HEAVY_REQUESTS = 500.0
#: A load of at least the first number of requests per second is also heavy if it is the second number times
#: the job's usual load.
_LEAST_HEAVY, _HEAVY_FACTOR = 1.0, 10.0
#: Opened files and MiB per second that are light for any file system; share of quick probes from which a file
#: system keeps up with a load.
_LIGHT_OPENS, _LIGHT_MIB, _KEEPS_UP = 20.0, 1.0, 0.5
#: Opened files per second that are reported, however fast the file system is.
MANY_OPENS = 1000.0
#: A probe is slow if it takes this many times the usual latency and at least this many milliseconds.
_SLOW_FACTOR, _SLOW_MS = 5.0, 10.0
#: Usual latency in milliseconds: lower bound, default if unknown, upper bound.
_USUAL_MS = (0.5, 2.0, 4.0)
_LEAST_PROBES, _LEAST_SIDE, _LEAST_SLOW = 8, 5, 3
#: Share of the probes without load that must be slow, or how many in a row; share of the probes with load
#: that must be slow; largest share of slow probes without load if the job is the cause.
_SLOW_LIGHT, _IN_A_ROW, _SLOW_HEAVY, _QUIET_LIGHT = 0.2, 4, 0.5, 0.1
_CLEARLY = 2.0
#: Largest share of shifted loads that may fit as well as the real one; least number of changes of the load;
#: share of equal values from which a shifted load counts as the same load.
_CHANCE, _LEAST_CHANGES, _SAME_LOAD = 0.03, 3, 0.9
#: Share of the probes with heavy load from which that load is reported.
_OFTEN = 0.1
_MIB = float(1 << 20)


@dataclass(frozen=True)
class StorageSeries:
    """Probes of a mount, with the job's own load around each.

    Parameters
    ----------
    latency_ms
        NaN where a probe failed.
    opens
        Files per second that the job opened at this mount; NaN if they were not counted.
    moved
        Bytes per second that the job moved at this mount (a lower bound if `most` is set); NaN if unknown.
    most
        Upper bound of `moved`; None if `moved` is exact.
    waited
        Share of time in which processes waited for storage; NaN where unknown, None if it is never known.
    waiting, opening, classes
        For people: whose waiting it is, who opens the files, and of which classes they are.
    shared
        True for a shared file system, for which many opened files matter even if it keeps up.
    """

    mount: str
    time_ns: NDArray[np.int64]
    latency_ms: _Floats
    opens: _Floats
    moved: _Floats
    shared: bool = True
    most: _Floats | None = None
    waited: _Floats | None = None
    waiting: str = "the job's processes"
    opening: str = "Your job"
    classes: str = ""


@dataclass(frozen=True)
class StorageJudgement:
    """Verdict on a mount.

    Parameters
    ----------
    slow
        Who is affected or responsible: ``everybody`` (slow for all), ``job`` (slowed by this job),
        ``unknown`` (slow without a known cause), or empty if it is not slow.
    probes, light, slow_light
        Numbers of probes, of probes while the job's load was light, and of slow ones among these.
    opens
        Median of the files that the job opens per second while its load is heavy; None if it never is.
    light_ms, heavy_ms
        Medians of the latency without and with heavy load; None without such probes.
    slow_ms
        Median latency of the slow probes without heavy load, for ``everybody``; else None.
    since
        UTC nanoseconds of the first slow probe that counts.
    chance
        Share of the shifted loads that fit the slow probes as well as the real load, for ``job``.
    many_opens
        True if the job opens so many files, so often, that this is reported.
    because
        The reason, for ``unknown``.
    waited, waited_else
        Shares of time in which processes waited for storage: medians at the slow probes that count, and at
        the others; None if unknown.
    series
        What was judged, for the words of `verdicts`.
    """

    mount: str
    slow: str
    probes: int
    light: int
    slow_light: int
    opens: float | None
    moved: float | None
    light_ms: float | None
    heavy_ms: float | None
    slow_ms: float | None
    since: int | None
    chance: float
    many_opens: bool
    because: str = ""
    waited: float | None = None
    waited_else: float | None = None
    series: StorageSeries | None = None

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts, each with its evidence."""
        found = []
        if self.slow == "everybody":
            found.append(
                Verdict("file_system", self._everybody(), since=self.since, confidence=self._confidence())
            )
        if self.slow == "job" or (self.many_opens and self.slow != "unknown"):
            found.append(Verdict("own_io", self._job(), since=self.since, confidence=self._confidence()))
        if self.slow == "unknown":
            found.append(cannot_tell(self.because, since=self.since))
        return found

    def _confidence(self) -> float:
        return max(0.0, 1.0 - self.chance)

    def _load(self) -> str:
        if self.opens is not None and self.opens >= (self.moved or 0.0) / _MIB:
            classes = f" ({self.series.classes})" if self.series and self.series.classes else ""
            return f"{self._opens} {_count(self.opens)} files per second{classes}"
        return f"moves {(self.moved or 0.0) / 1e6:,.0f} MB per second".replace(",", " ")

    @property
    def _opens(self) -> str:
        return "opens" if self._who == "Your job" else "open"

    @property
    def _who(self) -> str:
        return self.series.opening if self.series and self.opens is not None else "Your job"

    def _waits(self) -> str:
        """Return a sentence on the kernel's count of waiting processes; empty if it is unknown."""
        if self.waited is None or self.series is None:
            return ""
        other = "" if self.waited_else is None else f", in {100 * self.waited_else:.0f} % otherwise"
        share = f"{100 * self.waited:.0f} %"
        return f" In {share} of that time some of {self.series.waiting} waited for storage{other} (PSI)."

    def _everybody(self) -> str:
        return (
            f"{self.mount} was slow at {self.slow_light} of {self.light} probes while the job asked "
            f"little of it ({_ms(self.slow_ms)} for a name or 4 KiB). Others, or the file system itself, are "
            f"the reason.{self._waits()}"
        )

    def _job(self) -> str:
        load = self._load()
        text = f"{self._who if load.startswith('open') else 'Your job'} {load} at {self.mount}"
        if self.slow == "job":
            heavy, light = _ms(self.heavy_ms), _ms(self.light_ms)
            return f"{text}. It answers in {heavy} while the job does, in {light} otherwise.{self._waits()}"
        if self.slow == "everybody":
            return f"{text}, which is slow without that, too."
        return f"{text}. It keeps up: {_ms(self.heavy_ms)} for a name or 4 KiB."


def judge_storage(series: StorageSeries) -> StorageJudgement:
    """Return the judgement on a mount, given its probes and the job's load."""
    known = np.isfinite(series.latency_ms)
    times, latency = series.time_ns[known], series.latency_ms[known]
    opens, least = series.opens[known], series.moved[known]
    moved = np.maximum(least, least if series.most is None else series.most[known])
    requests = np.nan_to_num(opens) + np.nan_to_num(moved) / _MIB
    level = _heavy_level(requests)
    unknown_load = ~np.isfinite(opens) & (requests < level)
    heavy = (requests >= level) & ~unknown_load
    # Servers may still be working on requests from just before, so neighbours of a heavy load count as heavy.
    near = heavy | np.r_[False, heavy[:-1]] | np.r_[heavy[1:], False]
    apart = ~near & ~unknown_load
    threshold = _threshold(latency[apart])
    slow = latency >= threshold
    light = (
        apart
        & (
            np.nan_to_num(opens)
            <= max(_LIGHT_OPENS, _kept_up(opens, slow), _kept_up(opens[apart], slow[apart]))
        )
        & (
            np.nan_to_num(moved)
            <= max(_LIGHT_MIB * _MIB, _kept_up(least, slow), _kept_up(least[apart], slow[apart]))
        )
    )
    slow_light = int((slow & light).sum())
    kind, chance, because = _kind(latency, slow, heavy, light, threshold)
    chosen = slow & (light if kind == "everybody" else heavy if kind == "job" else slow)
    rate = _median(opens[heavy])
    waited = None if series.waited is None else series.waited[known]
    often = heavy.sum() >= max(_LEAST_SLOW, _OFTEN * len(latency))
    return StorageJudgement(
        series.mount,
        kind,
        probes=len(latency),
        light=int(light.sum()),
        slow_light=slow_light,
        opens=rate,
        moved=_median(moved[heavy]),
        light_ms=_median(latency[light]),
        heavy_ms=_median(latency[heavy]),
        slow_ms=_median(latency[slow & light]) if kind == "everybody" else None,
        since=int(times[chosen][0]) if kind and chosen.any() else None,
        chance=chance,
        many_opens=bool(series.shared and often and rate is not None and rate >= MANY_OPENS),
        because=because
        and _reason(because, series.mount, latency[slow], opens[heavy], len(latency), moved=moved[slow]),
        waited=None if waited is None else _median(waited[chosen]),
        waited_else=None if waited is None else _median(waited[~chosen]),
        series=series,
    )


def _heavy_level(requests: _Floats) -> float:
    """Return the requests per second from which a load is heavy at this mount."""
    usual, busy = np.quantile(requests, (0.25, 0.9)) if len(requests) else (0.0, 0.0)
    if busy < _HEAVY_FACTOR * max(usual, _LEAST_HEAVY / _HEAVY_FACTOR):
        return HEAVY_REQUESTS
    return float(np.clip(busy / 2, _LEAST_HEAVY, HEAVY_REQUESTS))


def _kept_up(load: _Floats, slow: _Flags) -> float:
    """Return half of the highest load at or above which most probes were quick; 0 if there is none.

    Half, because some probes are quick by chance even if a constant load nearly saturates a link.
    """
    known = np.isfinite(load)
    order = np.argsort(-load[known], kind="stable")
    loads, quick = load[known][order], np.cumsum(~slow[known][order])
    counts = np.arange(1, len(loads) + 1)
    enough = np.flatnonzero((counts >= _LEAST_SIDE) & (quick >= _KEEPS_UP * counts))
    return float(loads[enough[0]]) / 2 if len(enough) else 0.0


def _kind(
    latency: _Floats, slow: _Flags, heavy: _Flags, light: _Flags, threshold: float
) -> tuple[str, float, str]:
    """Return `StorageJudgement.slow`, the probability of coincidence, and the reason if unknown."""
    n_light, n_heavy = int(light.sum()), int(heavy.sum())
    slow_light, slow_heavy = int((slow & light).sum()), int((slow & heavy).sum())
    if len(latency) < _LEAST_PROBES or int(slow.sum()) < _LEAST_SLOW:
        return ("unknown", 1.0, "few") if int(slow.sum()) >= _LEAST_SLOW else ("", 0.0, "")
    # Several probes in a row that are barely slow may just be autocorrelated noise.
    lasts = _longest(latency[light] >= _CLEARLY * threshold) >= _IN_A_ROW
    if n_light >= _LEAST_SIDE and slow_light >= _IN_A_ROW and (lasts or slow_light >= _SLOW_LIGHT * n_light):
        return "everybody", 0.0, ""
    if n_light + n_heavy < len(latency) / 2:
        often = _longest(slow) >= _IN_A_ROW or slow.sum() >= _SLOW_LIGHT * len(latency)
        return ("unknown", 1.0, "uncounted") if often else ("", 0.0, "")
    if n_heavy < _LEAST_SLOW or slow_heavy < max(_LEAST_SLOW, _SLOW_HEAVY * n_heavy):
        # Isolated slow probes are not a slow period that a job could notice.
        return "", 0.0, ""
    changes = int(np.count_nonzero(np.diff(heavy.astype(np.int8))))
    chance = _coincidence(np.log(np.maximum(latency, 1e-3)), heavy)
    quiet = n_light >= _LEAST_SIDE and slow_light <= _QUIET_LIGHT * n_light
    if quiet and chance <= _CHANCE and changes >= _LEAST_CHANGES:
        return "job", chance, ""
    return "unknown", 1.0, "always" if n_light < _LEAST_SIDE else "coincidence"


def _coincidence(latency: _Floats, heavy: _Flags) -> float:
    """Return the share of shifted loads that fit the latency at least as well as the real load.

    Shifting a periodic load by its own period gives the same load; such shifts don't count.
    """
    count = int(heavy.sum())
    shifted = [np.roll(heavy, shift) for shift in range(1, len(heavy))]
    others = [each for each in shifted if int((each & heavy).sum()) < _SAME_LOAD * count]
    real = float(latency[heavy].sum())
    as_good = sum(float(latency[each].sum()) >= real for each in others)
    return (1 + as_good) / (1 + len(others))


def _longest(flags: _Flags) -> int:
    """Return the length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.r_[False, flags, False].astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _threshold(light: _Floats) -> float:
    low, default, high = _USUAL_MS
    usual = float(np.clip(np.quantile(light, 0.25), low, high)) if len(light) >= _LEAST_SIDE else default
    return max(_SLOW_MS, _SLOW_FACTOR * usual)


def _reason(because: str, mount: str, slow: _Floats, opens: _Floats, probes: int, *, moved: _Floats) -> str:
    answer = f"{mount} answers in {_ms(_median(slow))}"
    rate = _median(opens)
    load = "its load is heavy" if rate is None or not rate else f"it opens {_count(rate)} files per second"
    if because == "few":
        return f"{answer}, but was probed only {probes} times."
    if because == "uncounted" and (_median(moved) or 0.0) > _LIGHT_MIB * _MIB:
        amount = f"{(_median(moved) or 0.0) / 1e6:,.3g} MB per second"
        return (
            f"{answer} at times, but the job moves up to {amount} then: that may fill a slow link by itself."
        )
    if because == "uncounted":
        return f"{answer} at times, but how many files the job opened then is not known."
    if because == "always":
        return f"{answer}, but {load} nearly all the time: others may slow it as well, or it alone."
    return (
        f"{answer} while {load}, but that may be a coincidence: it changed too rarely to be told from others."
    )


def _median(values: _Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _count(value: float) -> str:
    digits = max(0, len(str(int(value))) - 2)
    return f"{round(value, -digits):,.0f}".replace(",", " ")


def _ms(value: float | None) -> str:
    if value is None:
        return "an unknown time"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.3g} ms"
