"""Query Slurm for idle GPUs, a user's accounts and reservations, and expected starts."""

import asyncio
import grp
import os
import pwd
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from ..model import GipfelError
from .machine import CommandResult
from .notation import GpuCount, parse_duration, parse_gpus
from .protocol import Association, Choices, JobRequest, Partition, Reservation
from .slurm_limits import Limit, parse_limits

#: sinfo's fields for `parse_partitions`; the suffix ``:|`` separates them and keeps sinfo from cutting long
#: values.
PARTITION_FIELDS = ",".join(
    f"{field}:|"
    for field in (
        *("PartitionName", "Partition", "Available", "Time", "Nodes", "StateLong", "Gres", "GresUsed"),
        *("DefaultTime", "CPUs", "Memory"),
    )
)
_ASSOCIATION_FIELDS = "Account,DefaultAccount,Partition,QOS,DefaultQOS"
# The suffixes mean: powered down, powering up, planned for another job. With others the node is not
# available.
_AVAILABLE_STATE = re.compile(r"(idle|mixed|allocated|completing|planned)[~#-]?")
_IDLE_STATE = re.compile(r"(idle|planned)[~#-]?")
# In the output of `sbatch --test-only`.
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
#: Slurm's commands would read other names as a list or as an option.
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?")
#: A start that is expected sooner counts as immediate.
_IMMEDIATE_S = 60
_GROUPS_LIMIT_S = 10.0
# A lookup in a directory service that does not answer ends after minutes; further lookups wait for a thread.
_MAX_LOOKUPS = 4


class RunCommand(Protocol):
    """A function that runs one of Slurm's commands."""

    def __call__(  # noqa: D102 - see the class
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Awaitable[CommandResult]: ...


class SlurmSite:
    """Queries of the spawn form to Slurm, without a cache.

    Parameters
    ----------
    run
        Runs one of Slurm's commands; raises `GipfelError` if it fails.
    groups
        Returns the names of a user's groups; it runs in a thread, because a directory service may be slow.
    groups_limit_s
        Time limit of `groups`.
    """

    def __init__(
        self,
        run: RunCommand,
        groups: Callable[[str], tuple[str, ...]] | None = None,
        groups_limit_s: float = _GROUPS_LIMIT_S,
    ) -> None:
        self._run = run
        self._groups, self._groups_limit_s = groups or groups_of, groups_limit_s
        self._lookups = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="gipfel-groups")

    async def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions, from one call of ``sinfo``."""
        result = await self._run(("sinfo", "--noheader", "--exact", f"--Format={PARTITION_FIELDS}"))
        return parse_partitions(result.output)

    async def choices(self, user: str) -> Choices:
        """Return a user's associations with their limits, and the reservations that the user may use."""
        if not USER.fullmatch(user):
            raise GipfelError(f"{user!r} is not a valid Unix user name.", "Log in with another name.")
        associations, default = await self._associations(user)
        accounts = {each.account for each in associations or ()}
        result = await self._run(("scontrol", "--oneliner", "show", "reservation"))
        reservations = parse_reservations(result.output)
        groups = await self._groups_of(user) if any(each.groups for each in reservations) else ()
        usable = (each for each in reservations if may_use(each, user, accounts, groups))
        return Choices(
            associations=associations,
            default_account=default,
            reservations=tuple(usable),
            limits=await self._limits(user, associations) if associations else (),
        )

    async def _limits(self, user: str, associations: Iterable[Association]) -> tuple[Limit, ...]:
        # Never with "qos=": that ends the controller of Slurm 22.05 if it has no QoS cached.
        argv = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos", f"users={user}")
        names = {name for each in associations for name in (*each.qos, each.default_qos)}
        try:
            found = parse_limits((await self._run(argv)).output, user)
        except GipfelError:
            # Some sites refuse this query. Slurm checks the limits itself when the job is queued.
            return ()
        return tuple(each for each in found if not each.qos or each.qos in names)

    async def _groups_of(self, user: str) -> tuple[str, ...]:
        lookup = asyncio.get_running_loop().run_in_executor(self._lookups, self._groups, user)
        try:
            return await asyncio.wait_for(lookup, self._groups_limit_s)
        except TimeoutError:
            raise GipfelError(
                f"The groups of {user} could not be read within {self._groups_limit_s:g} s.",
                "Check the directory service (`getent group`) on the hub's machine.",
            ) from None

    async def _associations(self, user: str) -> tuple[tuple[Association, ...] | None, str]:
        argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", "withassoc")
        try:
            result = await self._run((*argv, f"name={user}", f"format={_ASSOCIATION_FIELDS}"))
        except GipfelError as error:
            if "slurmdbd' is supported" in error.problem or "can't be run" in error.problem:
                return None, ""
            raise
        return parse_associations(result.output)

    async def expected_start(self, request: JobRequest, arguments: Sequence[str]) -> str:
        """Return when a job would start, as an ISO time; empty for within a minute.

        ``arguments`` is the argv of sbatch that would submit it.
        """
        argv = (arguments[0], "--test-only", *arguments[1:])
        result = await self._run(argv, user=request.user, stdin=request.script)
        match = _START.search(result.errors) or _START.search(result.output)
        try:
            moment = datetime.fromisoformat(match[1] if match else "").astimezone()
        except (ValueError, OverflowError):
            raise GipfelError("Slurm reported no expected start.") from None
        soon = (moment - datetime.now().astimezone()).total_seconds() < _IMMEDIATE_S
        return "" if soon else moment.isoformat()


def parse_partitions(output: str) -> tuple[Partition, ...]:
    """Parse the output of sinfo with `PARTITION_FIELDS`; return the partitions that are up, in its order."""
    partitions: dict[str, Partition] = {}
    for line in output.splitlines():
        # The last four fields may be missing; their values are unknown then.
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 7 or fields[2] != "up":
            continue
        name, name_with_default_mark, _, limit, nodes, state, gres, used, default, cpus, memory = (
            *fields,
            *[""] * 4,
        )[:11]
        count = int(nodes) if nodes.isdecimal() else 0
        before = partitions.get(name) or Partition(
            name=name,
            default=name_with_default_mark.endswith("*"),
            time_limit_s=_limit(limit),
            default_time_limit_s=_limit(default),
        )
        gpus = parse_gpus(gres)
        is_open = _AVAILABLE_STATE.fullmatch(state) is not None
        free = _subtract(gpus, parse_gpus(used)) if is_open and used else ()
        partitions[name] = before.model_copy(
            update={
                "gpus": _combine(before.gpus, gpus, max),
                "total_gpus": _add(before.total_gpus, gpus, count),
                "idle_gpus": _add(before.idle_gpus, free, count),
                "nodes": before.nodes + count,
                "idle_nodes": before.idle_nodes + (count if _IDLE_STATE.fullmatch(state) else 0),
                "cpus": max(before.cpus, _number(cpus)),
                "memory": max(before.memory, _number(memory)),
            }
        )
    return tuple(partitions.values())


def parse_associations(output: str) -> tuple[tuple[Association, ...], str]:
    """Parse ``sacctmgr --parsable2 show user withassoc``; return associations and the default account."""
    associations: list[Association] = []
    default_account = ""
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 5 or not fields[0]:
            continue
        account, default_account, partition, qos, default_qos = fields[:5]
        names = tuple(name for name in qos.split(",") if name)
        associations.append(
            Association(account=account, partition=partition, qos=names, default_qos=default_qos)
        )
    return tuple(associations), default_account


def parse_reservations(output: str) -> tuple[Reservation, ...]:
    """Parse ``scontrol --oneliner show reservation``."""
    reservations = []
    for line in output.splitlines():
        if not line.startswith("ReservationName="):
            continue
        # None of the values that are used can contain a space.
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)

        def names(field: str, fields: Mapping[str, str] = fields) -> tuple[str, ...]:
            text = fields.get(field, "")
            return () if text in {"", "(null)"} else tuple(text.split(","))

        reservations.append(
            Reservation(
                name=fields["ReservationName"],
                partition="".join(names("PartitionName")),
                start=fields.get("StartTime", ""),
                end=fields.get("EndTime", ""),
                active=fields.get("State") == "ACTIVE",
                users=names("Users"),
                accounts=names("Accounts"),
                groups=names("Groups"),
            )
        )
    return tuple(reservations)


def may_use(reservation: Reservation, user: str, accounts: Iterable[str], groups: Iterable[str]) -> bool:
    """Return whether a user may use a reservation; a list of names with a minus is a deny list."""

    def admits(entries: tuple[str, ...], names: set[str]) -> bool | None:
        """Return whether a list admits one of the names; None if there is no restriction."""
        if not entries:
            return None
        if all(each.startswith("-") for each in entries):
            return not names & {each[1:] for each in entries}
        return bool(names & set(entries))

    if admits(reservation.groups, set(groups)):
        return True
    answers = [admits(reservation.users, {user}), admits(reservation.accounts, set(accounts))]
    rules = [each for each in answers if each is not None]
    return bool(rules) and all(rules)


def groups_of(user: str) -> tuple[str, ...]:
    """Return the names of a unix user's groups on this machine."""
    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return ()
    names = []
    for number in numbers:
        with suppress(KeyError):
            names.append(grp.getgrgid(number).gr_name)
    return tuple(names)


def _add(one: tuple[GpuCount, ...], other: tuple[GpuCount, ...], times: int) -> tuple[GpuCount, ...]:
    return _combine(one, other, lambda before, more: before + more * times)


def _subtract(one: tuple[GpuCount, ...], other: tuple[GpuCount, ...]) -> tuple[GpuCount, ...]:
    used = {each.type: each.count for each in other}
    # If only one of the two lists names types, all used GPUs count for the only type.
    if len(one) == 1 and one[0].type not in used:
        used[one[0].type] = sum(used.values())
    return tuple(GpuCount(type=each.type, count=max(each.count - used.get(each.type, 0), 0)) for each in one)


def _combine(
    one: tuple[GpuCount, ...], other: tuple[GpuCount, ...], combine: Callable[[int, int], int]
) -> tuple[GpuCount, ...]:
    counts = {each.type: each.count for each in one}
    for each in other:
        counts[each.type] = combine(counts.get(each.type, 0), each.count)
    return tuple(GpuCount(type=kind, count=count) for kind, count in counts.items())


def _limit(text: str) -> int | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _number(text: str) -> int:
    digits = re.match(r"\d*", text)
    return int(digits[0] or 0) if digits else 0
