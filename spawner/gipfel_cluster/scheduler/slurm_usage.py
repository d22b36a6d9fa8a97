"""A user's GPU hours in Slurm: those used, from ``sacct``, and those left, from the limits of accounts.

Slurm limits the GPU minutes of an association with ``GrpTRESMins=gres/gpu=…``. A job charges its user's
association, the account, and every account above it, so what is left is the smallest remainder on that path.
The used minutes that Slurm compares decay with ``PriorityDecayHalfLife``. Limits of a QoS are not read here.
With ``AcctGatherEnergyType``, the same answer of ``sacct`` has the energy of jobs that ended.

The module also reads how long a user's jobs waited, and formats the output of ``gipfel quota``.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta

from ..model import Frozen, GipfelError
from .protocol import GpuBudget, GpuUsage, Quota, Waits
from .slurm_limits import Share, Spent, association_paths, limit_text
from .slurm_site import USER, RunCommand

#: Without --truncate a job that began earlier counts in full; without --duplicates a requeued job's earlier
#: runs are left out.
_OF_MONTH = ("--truncate", "--duplicates")
_WAIT_DAYS = 90
#: 0.95**59 < 0.05: fewer jobs can't bound the 95th percentile with a confidence of 95 %.
_MIN_JOBS_FOR_BOUND = 59
#: Largest number of GPUs of each size of jobs, and its name; see `Waits.gpus`.
_SIZES = ((0, "0"), (1, "1"), (7, "2-7"), (31, "8-31"))
_NO_ACCOUNTING = "accounting storage is disabled"
_UNKNOWN_USER = "Invalid user"
#: Slurm stores 2**64 - 1 or - 2 where it knows no energy; no job of a month uses 2**62 J.
_MAX_JOULES = 2**62
#: Prefix of the names of Gipfel's jobs, before the name of a service or one of the other kinds.
JOB_PREFIX = "gipfel-"
SHARE = "Share of the cluster"
_OTHER_KINDS = frozenset(("launch", "notebook", "server"))


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
        try:
            jobs = await self._sacct(user, since, "AllocTRES,ElapsedRaw", *_OF_MONTH)
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
        hours, energy = parse_gpu_hours(jobs), parse_energy(jobs)
        return GpuUsage(used=hours, energy_kwh=energy, budgets=budgets, shares=await self._shares(user))

    async def _shares(self, user: str) -> tuple[Share, ...]:
        """Return the user's shares, from ``sshare``; empty if Slurm does not weigh jobs by them."""
        fields = "Account,User,NormShares,EffectvUsage,FairShare"
        argv = ("sshare", "--noheader", "--parsable2", f"--users={user}", f"--format={fields}")
        try:
            return parse_shares((await self._run(argv)).output, user)
        except GipfelError:
            return ()

    async def spent(self, user: str, since: date) -> tuple[Spent, ...]:
        """Return the user's GPU hours since the beginning of a day, by account and service."""
        fields = "Account,AllocTRES,ElapsedRaw,JobName%80"
        try:
            return parse_spent(await self._sacct(user, since, fields, *_OF_MONTH))
        except GipfelError:
            return ()

    async def waits(self, user: str, now: datetime) -> tuple[Waits, ...]:
        """Return how long the user's jobs of the last 90 days waited; empty if Slurm has no accounting."""
        since = (now - timedelta(days=_WAIT_DAYS)).date()
        try:
            return parse_waits(await self._sacct(user, since, "Partition,ReqTRES,Eligible,Start"))
        except GipfelError:
            return ()

    async def _sacct(self, user: str, since: date, fields: str, *options: str) -> str:
        """Return these fields of the user's jobs since the beginning of a day, a line for each job."""
        if not USER.fullmatch(user):
            raise GipfelError(f"{user!r} can't be the name of a unix user.", "Log in with another name.")
        argv = ("sacct", "--noheader", "--parsable2", "--allocations", *options, f"--user={user}")
        window = (f"--starttime={since.isoformat()}", "--endtime=now", f"--format={fields}")
        return (await self._run((*argv, *window))).output


def parse_waits(output: str) -> tuple[Waits, ...]:
    """Return the waits in the output of sacct with the fields ``Partition,ReqTRES,Eligible,Start``.

    ``most_s`` is a bound by Brevik, Nurmi and Wolski: the k-th shortest of n waits, with the smallest k for
    which at most k - 1 of n waits are below the 95th percentile with a probability of at least 95 %.
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
    # The number of values below the percentile has this binomial distribution. It is summed from logarithms,
    # because the first terms are too small for a float.
    total = 0.0
    for index in range(count):
        logarithm = math.lgamma(count + 1) - math.lgamma(index + 1) - math.lgamma(count - index + 1)
        logarithm += index * math.log(0.95) + (count - index) * math.log(0.05)
        total += math.exp(logarithm)
        if total >= 0.95:
            return seconds[index]
    return seconds[-1]


def find_waits(found: Iterable[Waits], partition: str, gpus: int) -> Waits | None:
    """Return the waits of jobs on a partition that are as large as one with `gpus` GPUs; None without any."""
    return next((each for each in found if (each.partition, each.gpus) == (partition, _size(gpus))), None)


def wait_text(waits: Waits) -> str:
    """Return how long jobs waited, as a text with their size, partition and number."""
    gpus = {"0": "no GPU", "1": "1 GPU"}.get(waits.gpus, f"{waits.gpus} GPUs")
    return f"{gpus} on {waits.partition}: {bound_text(waits)}"


def bound_text(waits: Waits) -> str:
    """Return the times within which half and 95 % of the jobs started, as a clause without a full stop."""
    jobs = "1 job" if waits.jobs == 1 else f"{waits.jobs} jobs"
    most = "" if waits.most_s is None else f", 95 % within {_duration(waits.most_s)}"
    return f"half started within {_duration(waits.half_s)}{most} (from {jobs})"


def wait_row(waits: Waits) -> tuple[str, str, str, str, str]:
    """Return a row of a table: partition, GPUs, jobs, the times within which half and 95 % started."""
    most = "" if waits.most_s is None else _duration(waits.most_s)
    return waits.partition, waits.gpus, str(waits.jobs), _duration(waits.half_s), most


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def parse_gpu_hours(output: str) -> float:
    """Return the GPU hours in the output of sacct with the fields ``AllocTRES`` and ``ElapsedRaw``."""
    seconds = 0
    for line in output.splitlines():
        resources, _, elapsed = line.rpartition("|")
        if elapsed.strip().isdecimal():
            seconds += _gpus(resources) * int(elapsed)
    return seconds / 3600


def parse_energy(output: str) -> float | None:
    """Return the kWh in the same output of sacct; None if Slurm measured the energy of no job.

    A job has its energy in joules once it has ended; if it began before the time window, it counts in full.
    """
    found = (_counts(line.rpartition("|")[0]).get("energy", "") for line in output.splitlines())
    joules = sum(each for each in map(_number, found) if each < _MAX_JOULES)
    return joules / 3.6e6 if joules else None


def energy_text(kwh: float) -> str:
    """Return an energy with its unit, such as ``1.75 kWh``."""
    if kwh < 0.9995:
        return f"{1000 * kwh:.3g} Wh"
    return f"{kwh:.3g} kWh" if kwh < 100 else f"{kwh:,.0f} kWh"


def _counts(resources: str) -> dict[str, str]:
    return dict(each.split("=", 1) for each in resources.split(",") if "=" in each)


def _gpus(resources: str) -> int:
    """Return the GPUs in a list such as ``cpu=1,gres/gpu:gh200=2,gres/gpu=2``."""
    counts = _counts(resources)
    if "gres/gpu" in counts:
        return _number(counts["gres/gpu"])
    # Some sites account for typed GPUs only.
    return sum(_number(count) for name, count in counts.items() if name.startswith("gres/gpu:"))


def parse_spent(output: str) -> tuple[Spent, ...]:
    """Parse sacct's ``Account,AllocTRES,ElapsedRaw,JobName``; return sums by account and service, sorted."""
    found: dict[tuple[str, str], float] = {}
    for line in output.splitlines():
        account, resources, elapsed, name = (*line.split("|", 3), "", "", "")[:4]
        service = name.removeprefix(JOB_PREFIX) if name.startswith(JOB_PREFIX) else ""
        key = (account, "" if service in _OTHER_KINDS else service)
        if elapsed.isdecimal():
            found[key] = found.get(key, 0.0) + _gpus(resources) * int(elapsed) / 3600
    return tuple(
        Spent(account=key[0], service=key[1], gpu_hours=hours) for key, hours in sorted(found.items())
    )


def parse_shares(output: str, user: str) -> tuple[Share, ...]:
    """Parse sshare's ``Account,User,NormShares,EffectvUsage,FairShare``; accounts are indented by depth."""
    found = []
    for line in output.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) == 5 and words[1] == user:
            with suppress(ValueError):
                share, used, factor = map(float, words[2:])
                found.append(Share(account=words[0], share=share, used=used, factor=factor))
    return tuple(found)


class QuotaSection(Frozen):
    """A section of ``gipfel quota``: a title, and lines about limits, usage, shares or waits."""

    title: str
    lines: tuple[str, ...] = ()


def quota_sections(quota: Quota) -> Iterator[QuotaSection]:
    """Yield limits with what is left by account and QoS, then the month's GPU hours, shares and waits."""
    choices, usage = quota.choices, quota.usage
    if choices.associations is None:
        yield QuotaSection(title="Slurm uses no accounting here: accounts and QoS have no limits.")
    for account in choices.accounts:
        default = " (default)" if account == choices.default_account else ""
        title = f"Account {account}{default}, QoS {', '.join(choices.qos(account)) or 'none'}"
        lines = tuple(limit_text(each) for each in choices.limits if each.account == account)
        yield QuotaSection(title=title, lines=lines or ("no limits that you may see",))
    for qos in sorted({each.qos for each in choices.limits if each.qos}):
        lines = tuple(limit_text(each) for each in choices.limits if each.qos == qos)
        yield QuotaSection(title=f"QoS {qos}", lines=lines)
    if usage.used is not None:
        yield QuotaSection(title=_used_text(usage), lines=tuple(_spent_lines(quota.spent)))
    if usage.shares:
        yield QuotaSection(title=SHARE, lines=tuple(map(share_text, usage.shares)))
    if quota.waits:
        waits = tuple(map(wait_text, quota.waits))
        yield QuotaSection(title="Waits of your jobs in 90 days", lines=waits)


def standing_text(quota: Quota, account: str) -> str:
    """Return what a job of an account starts with, as sentences: GPU hours, energy, and the account's share.

    The text is empty if Slurm has no accounting.
    """
    parts = [] if quota.usage.used is None else [_used_text(quota.usage)]
    parts += [budget_text(each) for each in quota.usage.budgets if each.account == account]
    parts += [f"{SHARE}, {share_text(each)}" for each in quota.usage.shares if each.account == account]
    return " ".join(f"{part}." for part in parts)


def budget_text(budget: GpuBudget) -> str:
    """Return the GPU hours that are left of an account's limit, as a clause without a full stop."""
    left, limit = hours_text(budget.remaining), hours_text(budget.limit)
    return f"{left} of {limit} GPU hours left in account {budget.account}"


def hours_text(hours: float) -> str:
    """Return hours with at most one decimal place."""
    return f"{hours:.1f}".removesuffix(".0")


def _used_text(usage: GpuUsage) -> str:
    energy = "" if usage.energy_kwh is None else f", {energy_text(usage.energy_kwh)}"
    return f"Used this month: {usage.used or 0.0:.1f} GPU hours{energy}"


def share_text(share: Share) -> str:
    """Return an account's share, used and promised, without a full stop."""
    return (
        f"{share.account}: {100 * share.share:.1f} %, used {100 * share.used:.1f} % recently, "
        f"priority {share.factor:.2f} of 1"
    )


def _spent_lines(spent: Iterable[Spent]) -> Iterator[str]:
    """Yield the GPU hours of each account, and of each of its services."""
    listed = tuple(spent)
    for account in sorted({each.account for each in listed}):
        rows = [each for each in listed if each.account == account]
        services = ", ".join(f"{each.service} {each.gpu_hours:.1f}" for each in rows if each.service)
        of_services = f" (services: {services})" if services else ""
        yield f"{account or 'no account'}: {sum(each.gpu_hours for each in rows):.1f}{of_services}"


def parse_budgets(output: str, user: str) -> tuple[GpuBudget, ...]:
    """Parse ``scontrol --oneliner show assoc_mgr``; return a budget for each account with a limit.

    An account has no budget if neither it nor any account above it has a limit.
    """
    budgets: dict[str, GpuBudget] = {}
    for own, *above in association_paths(output, user):
        pairs = [pair for each in (own, *above) for pair in each.gpu_minutes]
        if pairs:
            limit, used = min(pairs, key=lambda pair: pair[0] - pair[1])
            left = max(limit - used, 0) / 60
            budget = GpuBudget(account=own.account, limit=limit / 60, remaining=left)
            # An account may have an association for each partition: the one with the most hours left counts.
            before = budgets.get(own.account)
            if before is None or before.remaining < left:
                budgets[own.account] = budget
    return tuple(budgets.values())


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= len(str(2**64)) else 0
