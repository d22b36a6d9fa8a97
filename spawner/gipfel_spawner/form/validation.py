"""Validation of user options against the cluster's partitions and the user's choices. Pure functions."""

from collections.abc import Mapping, Sequence

from gipfel_cluster.model import pluralize
from gipfel_cluster.scheduler.notation import format_duration, parse_duration
from gipfel_cluster.scheduler.protocol import Choices, Partition
from gipfel_cluster.scheduler.slurm_limits import Resource, exceeded, problem_text, requested_job

from .options import OptionError, UserOptions

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def choose_partition(options: UserOptions, partitions: Sequence[Partition]) -> Partition | None:
    """Return the partition of the options, or the default one; None if the scheduler reports no partitions.

    Raises
    ------
    OptionError
        There is no such partition, or its nodes or limits do not suffice for the options.
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
            f"Partition {chosen.name} has {pluralize(chosen.nodes, 'node')}, {options.nodes} were requested.",
            "Request fewer.",
            field="nodes",
        )
    _check_gpus(options.gpus or 0, chosen)
    _check_node(options, chosen)
    _check_time(options.time, chosen)
    return chosen


def assign_group_partition(
    options: UserOptions, partition: Partition | None, group: Sequence[str]
) -> UserOptions:
    """Return the options with a partition of the group, rather than the scheduler's default partition.

    ``group`` are the partitions of a cluster that the hub offers; empty: all.

    Raises
    ------
    OptionError
        The partition is not in the group.
    """
    if not group:
        return options
    name = partition.name if partition else options.partition or group[0]
    if name not in group:
        raise OptionError(
            f"There is no partition {name}.", f"Pick one of {', '.join(group)}.", field="partition"
        )
    return options.model_copy(update={"partition": name})


def _check_gpus(count: int, partition: Partition) -> None:
    available = max_gpus_per_node(partition)
    if available is None or count <= available:
        return
    requested = f"{count} {'was' if count == 1 else 'were'} requested."
    if available == 0:
        raise OptionError(f"This machine has no GPU, {requested}", "Request 0 GPUs.", field="gpus")
    raise OptionError(
        f"A node of partition {partition.name} has {pluralize(available, 'GPU')}, {requested}",
        "Request fewer.",
        field="gpus",
    )


def max_gpus_per_node(partition: Partition) -> int | None:
    """Return how many GPUs the largest node of a partition has; None if that is unknown."""
    count = sum(each.count for each in partition.gpus)
    return count if count or partition.gpus_known else None


def _check_node(options: UserOptions, partition: Partition) -> None:
    if partition.cpus and (options.cpus or 0) > partition.cpus:
        raise OptionError(
            f"A node of partition {partition.name} has {partition.cpus} CPUs, {options.cpus} were requested.",
            "Request fewer.",
            field="cpus",
        )
    if partition.memory and mebibytes(options.memory) > partition.memory:
        raise OptionError(
            f"A node of partition {partition.name} has {partition.memory} MiB of memory, {options.memory} "
            "was requested.",
            "Request less.",
            field="memory",
        )


def _check_time(time: str, partition: Partition) -> None:
    if not time or partition.time_limit_s is None:
        return
    seconds = parse_duration(time)
    if seconds is None or seconds > partition.time_limit_s:
        limit = format_duration(partition.time_limit_s)
        raise OptionError(
            f"Partition {partition.name} allows {limit}, {time} was requested.",
            "Request less time, or pick another partition.",
            field="time",
        )


def check_choices(options: UserOptions, choices: Choices | None, *, engines: Sequence[str] = ()) -> None:
    """Check that the user may use the account, QoS, reservation and engine.

    ``choices`` is None if the scheduler did not answer; it then checks the job itself.

    Raises
    ------
    OptionError
        The user has no such account, QoS or reservation, or the site has no such engine.
    """
    if options.engine and options.engine not in engines:
        raise _not_offered("engine", options.engine, engines)
    if choices is None:
        return
    offered = {
        "account": (options.account, choices.accounts),
        "qos": (options.qos, choices.qos(options.account, options.partition)),
        "reservation": (options.reservation, tuple(each.name for each in choices.reservations or ())),
    }
    for field, (value, known) in offered.items():
        if value and value not in known:
            raise _not_offered(field, value, known)


#: Resource of a limit -> the form's field that it restricts.
_LIMIT_FIELDS: Mapping[Resource, str] = {
    "gpus": "gpus",
    "cpus": "cpus",
    "nodes": "nodes",
    "minutes": "time",
    "gpu_minutes": "account",
}


def check_limits(options: UserOptions, choices: Choices | None, partition: Partition | None) -> None:
    """Check that no limit of the account or QoS would keep the job waiting for ever.

    This can't be left to Slurm, which accepts such a job and even reports a start time for it.

    Raises
    ------
    OptionError
        The options exceed a limit.
    """
    if choices is None or not choices.limits:
        return
    job = requested_job(
        options,
        choices,
        partition,
        nodes=options.nodes,
        gpus=options.gpus or 0,
        cpus=options.cpus or 0,
    )
    for limit in exceeded(job, choices.limits):
        raise OptionError(
            f"{problem_text(job, limit)} Slurm would never start this job.",
            "Request less, or pick another account or QoS. `gipfel quota` shows all limits.",
            field=_LIMIT_FIELDS.get(limit.resource, "qos" if limit.qos else "account"),
        )


def check_vetting(options: UserOptions, protocols: Sequence[str]) -> None:
    """Check that the site offers the vetting protocol.

    Raises
    ------
    OptionError
        The site does not offer it.
    """
    if options.vet and options.vet not in protocols:
        fix = f"Pick one of {', '.join(protocols)}." if protocols else "Leave the field empty."
        raise OptionError(f"This hub has no vetting protocol {options.vet}.", fix, field="vet")


def _not_offered(field: str, value: str, known: Sequence[str]) -> OptionError:
    name = "QoS" if field == "qos" else field
    fix = f"Pick one of {', '.join(known)}." if known else "Leave the field empty: there is no choice here."
    return OptionError(f"You have no {name} {value}.", fix, field=field)


def limit_time(default: str, partition: Partition | None) -> str:
    """Return the default time limit, or the partition's limit if that is shorter."""
    if not default or partition is None or partition.time_limit_s is None:
        return default
    seconds = parse_duration(default)
    if seconds is None or seconds > partition.time_limit_s:
        return format_duration(partition.time_limit_s)
    return default


def mebibytes(memory: str) -> float:
    """Return an amount of memory in Slurm's syntax (``64G``; a bare number is MiB) in MiB, 0 if empty."""
    if not memory:
        return 0.0
    number, unit = (memory[:-1], memory[-1]) if memory[-1] in _UNITS else (memory, "M")
    return int(number) * _UNITS[unit]


def add_per_gpu_defaults(options: UserOptions, *, cpus_per_gpu: int, memory_per_gpu: str) -> UserOptions:
    """Return the options with the site's CPUs and memory per GPU if the user gave none."""
    gpus = options.gpus or 0
    changes: dict[str, object] = {}
    if gpus and options.cpus is None and cpus_per_gpu:
        changes["cpus"] = cpus_per_gpu * gpus
    if gpus and not options.memory and memory_per_gpu:
        changes["memory"] = f"{max(round(mebibytes(memory_per_gpu) * gpus), 1)}M"
    return options.model_copy(update=changes) if changes else options
