"""Ask Slurm about its site: idle GPUs, a user's accounts and reservations, expected starts."""

import grp
import os
import pwd
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from ..model import GipfelError
from .command import CommandResult
from .notation import GpuCount, parse_duration, parse_gpus
from .protocol import Association, Choices, JobRequest, Partition, Reservation

#: sinfo's fields for `read_partitions`; the suffix keeps it from cutting long values off.
PARTITION_FIELDS = ",".join(
    f"{field}:|"
    for field in (
        *("PartitionName", "Partition", "Available", "Time", "Nodes", "StateLong", "Gres", "GresUsed"),
        *("DefaultTime", "CPUs", "Memory"),
    )
)
_ASSOCIATION_FIELDS = "Account,DefaultAccount,Partition,QOS,DefaultQOS"
# Behind a state: powered down, powering up, planned for another job. Any other mark keeps jobs away.
_OPEN_STATE = re.compile(r"(idle|mixed|allocated|completing|planned)[~#-]?")
_IDLE_STATE = re.compile(r"(idle|planned)[~#-]?")
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
# It may be a comma list, or an option, for sacctmgr.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?")
_SOON_SECONDS = 60


class Run(Protocol):
    """A function that runs one of Slurm's commands."""

    def __call__(  # noqa: D102 - the class says it
        self,
        argv: Sequence[str],
        *,
        user: str = "",
        environment: Mapping[str, str] | None = None,
        given: str = "",
    ) -> Awaitable[CommandResult]: ...


class SlurmSite:
    """Questions of the form to Slurm; no answer is cached."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def partitions(self) -> tuple[Partition, ...]:
        """Ask ``sinfo`` once for everything."""
        result = await self._run(("sinfo", "--noheader", "--exact", f"--Format={PARTITION_FIELDS}"))
        return read_partitions(result.output)

    async def choices(self, user: str) -> Choices:
        """Ask for a user's associations, and for reservations that the user may use."""
        if not _USER.fullmatch(user):
            raise GipfelError(f"{user!r} can't be the name of a unix user.", "Log in with another name.")
        associations, default = await self._associations(user)
        accounts = {each.account for each in associations or ()}
        result = await self._run(("scontrol", "--oneliner", "show", "reservation"))
        groups = groups_of(user)
        usable = (each for each in read_reservations(result.output) if may_use(each, user, accounts, groups))
        return Choices(associations=associations, default_account=default, reservations=tuple(usable))

    async def _associations(self, user: str) -> tuple[tuple[Association, ...] | None, str]:
        argv = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "user", "withassoc")
        try:
            result = await self._run((*argv, f"name={user}", f"format={_ASSOCIATION_FIELDS}"))
        except GipfelError as error:
            if "slurmdbd' is supported" in error.problem or "can't be run" in error.problem:
                return None, ""
            raise
        return read_associations(result.output)

    async def expected_start(self, request: JobRequest, arguments: Sequence[str]) -> str:
        """Ask ``sbatch`` (whose argv is ``arguments``) when the job would start, as its user."""
        argv = (arguments[0], "--test-only", *arguments[1:])
        result = await self._run(argv, user=request.user, given=request.script)
        match = _START.search(result.errors) or _START.search(result.output)
        try:
            moment = datetime.fromisoformat(match[1] if match else "").astimezone()
        except (ValueError, OverflowError):
            raise GipfelError("Slurm gave no expected start.") from None
        soon = (moment - datetime.now().astimezone()).total_seconds() < _SOON_SECONDS
        return "" if soon else moment.isoformat()


def read_partitions(output: str) -> tuple[Partition, ...]:
    """Parse ``sinfo --exact --Format=PARTITION_FIELDS``: the partitions that are up, in its order."""
    found: dict[str, Partition] = {}
    for line in output.splitlines():
        # Without the last four fields, too: then their values are unknown.
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 7 or fields[2] != "up":
            continue
        name, marked, _, limit, nodes, state, gres, used, default, cpus, memory = (*fields, *[""] * 4)[:11]
        count = int(nodes) if nodes.isdecimal() else 0
        before = found.get(name) or Partition(
            name=name,
            default=marked.endswith("*"),
            seconds=_limit(limit),
            default_seconds=_limit(default),
        )
        gpus = parse_gpus(gres)
        is_open = _OPEN_STATE.fullmatch(state) is not None
        free = _minus(gpus, parse_gpus(used)) if is_open and used else ()
        found[name] = before.model_copy(
            update={
                "gpus": _most(before.gpus, gpus),
                "all_gpus": _plus(before.all_gpus, gpus, count),
                "idle_gpus": _plus(before.idle_gpus, free, count),
                "nodes": before.nodes + count,
                "idle": before.idle + (count if _IDLE_STATE.fullmatch(state) else 0),
                "cpus": max(before.cpus, _number(cpus)),
                "memory": max(before.memory, _number(memory)),
            }
        )
    return tuple(found.values())


def read_associations(output: str) -> tuple[tuple[Association, ...], str]:
    """Parse ``sacctmgr --parsable2 show user withassoc``: associations and the default account."""
    found: list[Association] = []
    default_account = ""
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 5 or not fields[0]:
            continue
        account, default_account, partition, qos, default_qos = fields[:5]
        names = tuple(name for name in qos.split(",") if name)
        found.append(Association(account=account, partition=partition, qos=names, default_qos=default_qos))
    return tuple(found), default_account


def read_reservations(output: str) -> tuple[Reservation, ...]:
    """Parse ``scontrol --oneliner show reservation``."""
    found = []
    for line in output.splitlines():
        if not line.startswith("ReservationName="):
            continue
        # None of the values that are read can hold a space.
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)

        def names(field: str, fields: Mapping[str, str] = fields) -> tuple[str, ...]:
            text = fields.get(field, "")
            return () if text in {"", "(null)"} else tuple(text.split(","))

        found.append(
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
    return tuple(found)


def may_use(reservation: Reservation, user: str, accounts: Iterable[str], groups: Iterable[str]) -> bool:
    """Return whether a reservation admits a user; a name with a minus excludes it and admits all others."""

    def lets(named: tuple[str, ...], own: set[str]) -> bool | None:
        if not named:
            return None
        if all(each.startswith("-") for each in named):
            return not own & {each[1:] for each in named}
        return bool(own & set(named))

    if groups_let := lets(reservation.groups, set(groups)):
        return groups_let
    answers = [lets(reservation.users, {user}), lets(reservation.accounts, set(accounts))]
    known = [each for each in answers if each is not None]
    return bool(known) and all(known)


def groups_of(user: str) -> tuple[str, ...]:
    """Return the names of a unix user's groups on this machine."""
    try:
        numbers = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return ()
    names = []
    for number in numbers:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return tuple(names)


def _most(one: tuple[GpuCount, ...], other: tuple[GpuCount, ...]) -> tuple[GpuCount, ...]:
    return _joined(one, other, max)


def _plus(one: tuple[GpuCount, ...], other: tuple[GpuCount, ...], times: int) -> tuple[GpuCount, ...]:
    return _joined(one, other, lambda before, more: before + more * times)


def _minus(one: tuple[GpuCount, ...], other: tuple[GpuCount, ...]) -> tuple[GpuCount, ...]:
    used = {each.type: each.count for each in other}
    # A node that names no type in one of the two lists: what is used counts for its only type.
    if len(one) == 1 and one[0].type not in used:
        used[one[0].type] = sum(used.values())
    return tuple(GpuCount(type=each.type, count=max(each.count - used.get(each.type, 0), 0)) for each in one)


def _joined(
    one: tuple[GpuCount, ...], other: tuple[GpuCount, ...], join: Callable[[int, int], int]
) -> tuple[GpuCount, ...]:
    counts = {each.type: each.count for each in one}
    for each in other:
        counts[each.type] = join(counts.get(each.type, 0), each.count)
    return tuple(GpuCount(type=kind, count=count) for kind, count in counts.items())


def _limit(text: str) -> int | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _number(text: str) -> int:
    digits = re.match(r"\d*", text)
    return int(digits[0] or 0) if digits else 0
