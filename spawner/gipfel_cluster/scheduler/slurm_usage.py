"""A user's GPU hours in Slurm: those used, from ``sacct``, and those left, from the limits of accounts.

Slurm limits the GPU minutes of an association with ``GrpTRESMins=gres/gpu=…``. A job charges its user's
association, the account, and every account above it, so what is left is the smallest rest on that path. The
used minutes that Slurm compares decay with ``PriorityDecayHalfLife``. Limits of a QoS are not read.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta

from ..model import Frozen, GipfelError
from .protocol import GpuBudget, GpuUsage, Waits
from .slurm_site import RunCommand

# sacct and scontrol would read other names as a list or as an option.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?")
_LIMIT = re.compile(r"gres/gpu(?::[^=]+)?=([0-9]+)\(([0-9]+)\)")
_NAME = re.compile(r"([^(]*)(?:\([0-9]+\))?")
_WAIT_DAYS = 90
#: 0.95**59 < 0.05: fewer jobs can't bound the 95th percentile with a confidence of 95 %.
_MIN_JOBS_FOR_BOUND = 59
_SIZES = ((0, "0"), (1, "1"), (7, "2-7"), (31, "8-31"))
_NO_ACCOUNTING = "accounting storage is disabled"
_UNKNOWN_USER = "Invalid user"
_MAX_DEPTH = 50


class SlurmUsage:
    """Queries of a user's GPU hours to Slurm, without a cache."""

    def __init__(self, run: RunCommand) -> None:
        self._run = run

    async def gpu_usage(self, user: str, since: date) -> GpuUsage:
        """Return the user's GPU hours since the beginning of a day; empty if Slurm has no accounting.

        Raises
        ------
        GipfelError
            Slurm did not answer in time.
        """
        if not _USER.fullmatch(user):
            raise GipfelError(f"{user!r} can't be the name of a unix user.", "Log in with another name.")
        # Without --truncate a job that began earlier counts in full; without --duplicates a requeued job's
        # earlier runs are left out.
        argv = ("sacct", "--noheader", "--parsable2", "--allocations", "--truncate", "--duplicates")
        window = (f"--user={user}", f"--starttime={since.isoformat()}", "--endtime=now")
        try:
            jobs = await self._run((*argv, *window, "--format=AllocTRES,ElapsedRaw"))
        except GipfelError as error:
            if _NO_ACCOUNTING in error.problem or "can't be run" in error.problem:
                return GpuUsage()
            if _UNKNOWN_USER in error.problem:
                return GpuUsage(used=0.0)
            raise
        shown = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc", f"users={user}")
        try:
            budgets = parse_budgets((await self._run(shown)).output, user)
        except GipfelError:
            # Some sites refuse this query; the hours are known without it.
            budgets = ()
        return GpuUsage(used=parse_gpu_hours(jobs.output), budgets=budgets)

    async def waits(self, user: str, now: datetime) -> tuple[Waits, ...]:
        """Return how long the user's jobs of the last 90 days waited; empty if Slurm has no accounting."""
        if not _USER.fullmatch(user):
            return ()
        since = (now - timedelta(days=_WAIT_DAYS)).date().isoformat()
        argv = (
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--user={user}",
            f"--starttime={since}",
        )
        try:
            jobs = await self._run((*argv, "--endtime=now", "--format=Partition,ReqTRES,Eligible,Start"))
        except GipfelError:
            return ()
        return parse_waits(jobs.output)


def parse_waits(output: str) -> tuple[Waits, ...]:
    """Return the waits in the output of sacct with the fields ``Partition,ReqTRES,Eligible,Start``.

    The bound is the order statistic of Brevik, Nurmi and Wolski: of n waits, the smallest k-th one for which
    at most k - 1 of n jobs are below the 95th percentile with a probability of at least 95 %.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for line in output.splitlines():
        partition, requested, eligible, start = (*line.split("|"), "", "", "")[:4]
        try:
            seconds = (datetime.fromisoformat(start) - datetime.fromisoformat(eligible)).total_seconds()
        except ValueError:
            # A job that has not started, or was cancelled before.
            continue
        if seconds >= 0 and "," not in partition:
            found.setdefault((partition, _size(_gpus(requested))), []).append(seconds)
    return tuple(_waits(*key, sorted(seconds)) for key, seconds in sorted(found.items()))


def _size(gpus: int) -> str:
    return next((name for largest, name in _SIZES if gpus <= largest), "32+")


def _waits(partition: str, gpus: str, seconds: list[float]) -> Waits:
    half = seconds[(len(seconds) - 1) // 2]
    return Waits(partition=partition, gpus=gpus, jobs=len(seconds), half_s=half, most_s=_upper_bound(seconds))


def _upper_bound(seconds: list[float]) -> float | None:
    """Return a bound of the 95th percentile with a confidence of 95 %; None for too few values."""
    count = len(seconds)
    if count < _MIN_JOBS_FOR_BOUND:
        return None
    # Of the values, a number with this distribution is below the percentile. Logarithms, because the first
    # terms are too small for a float.
    total = 0.0
    for index in range(count):
        logarithm = math.lgamma(count + 1) - math.lgamma(index + 1) - math.lgamma(count - index + 1)
        logarithm += index * math.log(0.95) + (count - index) * math.log(0.05)
        total += math.exp(logarithm)
        if total >= 0.95:
            return seconds[index]
    return seconds[-1]


def parse_gpu_hours(output: str) -> float:
    """Return the GPU hours in the output of sacct with the fields ``AllocTRES`` and ``ElapsedRaw``."""
    seconds = 0
    for line in output.splitlines():
        resources, _, elapsed = line.rpartition("|")
        if elapsed.strip().isdecimal():
            seconds += _gpus(resources) * int(elapsed)
    return seconds / 3600


def _gpus(resources: str) -> int:
    """Return the GPUs in a list such as ``cpu=1,gres/gpu:gh200=2,gres/gpu=2``."""
    counts = dict(each.split("=", 1) for each in resources.split(",") if "=" in each)
    if "gres/gpu" in counts:
        return _number(counts["gres/gpu"])
    # Where the site accounts for the types only.
    return sum(_number(count) for name, count in counts.items() if name.startswith("gres/gpu:"))


class _Association(Frozen):
    """One association: its account, the account above it, and its limits as pairs of limit and use."""

    account: str
    parent: str
    user: str
    minutes: tuple[tuple[int, int], ...]


def parse_budgets(output: str, user: str) -> tuple[GpuBudget, ...]:
    """Parse ``scontrol --oneliner show assoc_mgr``; return a budget for each account with a limit.

    An account without a limit, on its own and above, has none.
    """
    records = [_association(line) for line in output.splitlines() if line.startswith("ClusterName=")]
    accounts = {each.account: each for each in records if not each.user}
    budgets: dict[str, GpuBudget] = {}
    for own in records:
        if own.user != user:
            continue
        pairs = [pair for each in (own, *_above(own.account, accounts)) for pair in each.minutes]
        if pairs:
            limit, used = min(pairs, key=lambda pair: pair[0] - pair[1])
            left = max(limit - used, 0) / 60
            budget = GpuBudget(account=own.account, limit=limit / 60, remaining=left)
            # An account may have an association for each partition: the one with the most counts.
            before = budgets.get(own.account)
            if before is None or before.remaining < left:
                budgets[own.account] = budget
    return tuple(budgets.values())


def _above(name: str, accounts: Mapping[str, _Association]) -> Iterable[_Association]:
    """Return the account and all accounts above it."""
    path: list[_Association] = []
    while name in accounts and len(path) < _MAX_DEPTH:
        path.append(accounts[name])
        name = accounts[name].parent
    return path


def _association(line: str) -> _Association:
    fields = dict(word.split("=", 1) for word in line.split() if "=" in word)

    def name(field: str) -> str:
        match = _NAME.match(fields.get(field, ""))
        return match[1] if match else ""

    minutes = _LIMIT.findall(fields.get("GrpTRESMins", ""))
    return _Association(
        account=fields.get("Account", ""),
        parent=name("ParentAccount"),
        user=name("UserName"),
        minutes=tuple((int(limit), int(used)) for limit, used in minutes),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
