"""Check of a user's options against what the cluster has and what the user may use; pure."""

from collections.abc import Sequence

from gipfel_cluster.scheduler.notation import format_duration, parse_duration
from gipfel_cluster.scheduler.protocol import Choices, Partition

from .options import OptionError, UserOptions

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def choose_partition(options: UserOptions, partitions: Sequence[Partition]) -> Partition | None:
    """Return the partition that the options name, None where the scheduler has named none.

    Raises
    ------
    OptionError
        There is no such partition, or it has less than the options ask for.
    """
    if not partitions:
        return None
    default = next((each for each in partitions if each.default), partitions[0])
    named = {each.name: each for each in partitions}
    chosen = named.get(options.partition) if options.partition else default
    if chosen is None:
        known = ", ".join(named)
        raise OptionError(
            f"There is no partition {options.partition}.", f"Pick one of {known}.", field="partition"
        )
    if options.nodes > chosen.nodes:
        raise OptionError(
            f"Partition {chosen.name} has {_count(chosen.nodes, 'node')}, {options.nodes} were asked for.",
            "Ask for fewer.",
            field="nodes",
        )
    _check_gpus(options.gpus or 0, chosen)
    _check_node(options, chosen)
    _check_time(options.time, chosen)
    return chosen


def within_group(options: UserOptions, chosen: Partition | None, group: Sequence[str]) -> UserOptions:
    """Return the options with a partition of a cluster's group, not left to its scheduler.

    Raises
    ------
    OptionError
        The partition is not in the group.
    """
    if not group:
        return options
    name = chosen.name if chosen else options.partition or group[0]
    if name not in group:
        raise OptionError(
            f"There is no partition {name}.", f"Pick one of {', '.join(group)}.", field="partition"
        )
    return options.model_copy(update={"partition": name})


def _check_gpus(wanted: int, partition: Partition) -> None:
    most = most_gpus(partition)
    if most is None or wanted <= most:
        return
    asked = f"{wanted} {'was' if wanted == 1 else 'were'} asked for."
    if most == 0:
        raise OptionError(f"This machine has no GPU, {asked}", "Ask for 0 GPUs.", field="gpus")
    raise OptionError(
        f"A node of partition {partition.name} has {_count(most, 'GPU')}, {asked}",
        "Ask for fewer.",
        field="gpus",
    )


def most_gpus(partition: Partition) -> int | None:
    """Return how many GPUs the largest node of a partition has; None where that is not known."""
    most = sum(each.count for each in partition.gpus)
    return most if most or partition.gpus_known else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _check_node(options: UserOptions, partition: Partition) -> None:
    if partition.cpus and (options.cpus or 0) > partition.cpus:
        raise OptionError(
            f"A node of partition {partition.name} has {partition.cpus} CPUs, {options.cpus} were asked for.",
            "Ask for fewer.",
            field="cpus",
        )
    if partition.memory and mebibytes(options.memory) > partition.memory:
        raise OptionError(
            f"A node of partition {partition.name} has {partition.memory} MiB of memory, {options.memory} "
            "was asked for.",
            "Ask for less.",
            field="memory",
        )


def _check_time(time: str, partition: Partition) -> None:
    if not time or partition.seconds is None:
        return
    seconds = parse_duration(time)
    if seconds is None or seconds > partition.seconds:
        limit = format_duration(partition.seconds)
        raise OptionError(
            f"Partition {partition.name} allows {limit}, {time} was asked for.",
            "Ask for less time, or pick another partition.",
            field="time",
        )


def check_choices(options: UserOptions, choices: Choices | None, *, engines: Sequence[str] = ()) -> None:
    """Compare with what the user may choose; ``choices`` is None where the scheduler did not answer.

    What is not known is left to the scheduler, which refuses the job itself.

    Raises
    ------
    OptionError
        The user has no such account, QoS or reservation, or the site no such engine.
    """
    if options.engine and options.engine not in engines:
        raise _not_offered("engine", options.engine, engines)
    if choices is None:
        return
    accounts = choices.accounts
    if options.account and options.account not in accounts:
        raise _not_offered("account", options.account, accounts)
    qos = choices.qos(options.account, options.partition)
    if options.qos and options.qos not in qos:
        raise _not_offered("qos", options.qos, qos)
    names = tuple(each.name for each in choices.reservations or ())
    if options.reservation and options.reservation not in names:
        raise _not_offered("reservation", options.reservation, names)


def check_vetting(options: UserOptions, protocols: Sequence[str]) -> None:
    """Compare with the protocols that the site offers.

    Raises
    ------
    OptionError
        It offers no such one.
    """
    if options.vet and options.vet not in protocols:
        known = f"Pick one of {', '.join(protocols)}." if protocols else "Leave it empty: there is none."
        raise OptionError(f"This hub offers no vetting by {options.vet}.", known, field="vet")


def _not_offered(field: str, value: str, known: Sequence[str]) -> OptionError:
    word = "QoS" if field == "qos" else field
    fix = f"Pick one of {', '.join(known)}." if known else "Leave it empty: there is none to choose here."
    return OptionError(f"You have no {word} {value}.", fix, field=field)


def time_within(default: str, partition: Partition | None) -> str:
    """Return the default time limit, cut to what the partition allows."""
    if not default or partition is None or partition.seconds is None:
        return default
    seconds = parse_duration(default)
    if seconds is None or seconds > partition.seconds:
        return format_duration(partition.seconds)
    return default


def mebibytes(memory: str) -> float:
    """Return an amount of memory in Slurm's syntax (``64G``; a bare number is MiB) as MiB, 0 for none."""
    if not memory:
        return 0.0
    number, unit = (memory[:-1], memory[-1]) if memory[-1] in _UNITS else (memory, "M")
    return int(number) * _UNITS[unit]


def with_shares(options: UserOptions, *, cpus_per_gpu: int, memory_per_gpu: str) -> UserOptions:
    """Return the options with the site's share of CPUs and memory for each GPU, where the user named none."""
    gpus = options.gpus or 0
    changes: dict[str, object] = {}
    if gpus and options.cpus is None and cpus_per_gpu:
        changes["cpus"] = cpus_per_gpu * gpus
    if gpus and not options.memory and memory_per_gpu:
        changes["memory"] = f"{max(round(mebibytes(memory_per_gpu) * gpus), 1)}M"
    return options.model_copy(update=changes) if changes else options
