"""What a user chose, as a value: from the form, from a link, from the REST API."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler.durations import format_duration, parse_duration
from gipfel_cluster.scheduler.protocol import Name, Partition, TimeLimit

_EDF = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+@-]*|~?/.*)?")
_MOST_BYTES = 16 << 10
_FIELDS = {
    "edf": "the environment",
    "partition": "the partition",
    "gpus": "GPUs",
    "nodes": "nodes",
    "time": "the time",
}


def _name_or_path(value: str) -> str:
    if not _EDF.fullmatch(value):
        raise ValueError("give the name of an environment, or a path that begins with / or ~/")
    return value


class UserOptions(Frozen):
    """What the form asks for; `UserOptions()` means the defaults.

    ``edf`` is the name of an EDF, or a path that begins with ``/`` or ``~/``; ``gpus`` is per node;
    ``time`` is in Slurm's syntax; empty means the site's default.
    """

    edf: Annotated[Line, Field(max_length=4096), AfterValidator(_name_or_path)] = ""
    partition: Name = ""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    time: TimeLimit = ""


def read_options(content: Mapping[str, Any]) -> UserOptions:
    """Options as the REST API gives them.

    Raises
    ------
    GipfelError
        A field is not known or holds what it may not, or all are more than 16 KiB of JSON.
    """
    if len(json.dumps(dict(content), default=str)) > _MOST_BYTES:
        raise GipfelError("The options are too long.", f"Give at most {_MOST_BYTES} bytes.")
    try:
        return UserOptions.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise GipfelError(
                f"There is no option {field[:40]!r}.", f"The options are {', '.join(_FIELDS)}."
            ) from None
        message = str(first["msg"]).removeprefix("Value error, ")
        raise GipfelError(f"The value for {_FIELDS.get(field, field)} can't be used: {message}.") from None


def read_form(form: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Options of the form: one text for each field; a path wins over the selected environment.

    Raises
    ------
    GipfelError
        A field is not known, comes twice or holds what it may not.
    """
    single: dict[str, Any] = {}
    for field, values in form.items():
        if len(values) != 1 or not isinstance(values[0], str):
            raise GipfelError(f"The field {field[:40]!r} needs one value.")
        single[field] = values[0].strip()
    path = single.pop("edf_path", "")
    if path:
        single["edf"] = path
    return read_options({field: value for field, value in single.items() if value or field not in _FIELDS})


def read_query(query: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Options of a link: as the form's, but an environment by its name only.

    A link is written by somebody else: it may choose among the user's environments, not bring one.

    Raises
    ------
    GipfelError
        As `read_form`, and for a path.
    """
    options = read_form(query)
    if options.edf.startswith(("/", "~")):
        raise GipfelError("A link can't bring an environment by its path.", "Choose it in the form.")
    return options


def choose_partition(options: UserOptions, partitions: Sequence[Partition]) -> Partition | None:
    """The partition that the options mean, None where the scheduler has named none.

    Raises
    ------
    GipfelError
        There is no such partition, or it has less than the options ask for.
    """
    if not partitions:
        return None
    default = next((each for each in partitions if each.default), partitions[0])
    named = {each.name: each for each in partitions}
    chosen = named.get(options.partition) if options.partition else default
    if chosen is None:
        known = ", ".join(named)
        raise GipfelError(f"There is no partition {options.partition}.", f"Pick one of {known}.")
    if options.nodes > chosen.nodes:
        raise GipfelError(
            f"Partition {chosen.name} has {chosen.nodes} nodes, {options.nodes} were asked for.",
            "Ask for fewer.",
        )
    most = sum(each.count for each in chosen.gpus)
    # A partition without GPUs is let pass on a machine of its own, where ranks then run on the CPU.
    if most and (options.gpus or 0) > most:
        raise GipfelError(
            f"A node of partition {chosen.name} has {most} GPUs, {options.gpus} were asked for.",
            "Ask for fewer.",
        )
    _check_time(options.time, chosen)
    return chosen


def _check_time(time: str, partition: Partition) -> None:
    if not time or partition.seconds is None:
        return
    seconds = parse_duration(time)
    if seconds is None or seconds > partition.seconds:
        limit = format_duration(partition.seconds)
        raise GipfelError(
            f"Partition {partition.name} allows {limit}, {time} was asked for.",
            "Ask for less time, or pick another partition.",
        )


def time_within(default: str, partition: Partition | None) -> str:
    """The default time limit, cut to what the partition allows."""
    if not default or partition is None or partition.seconds is None:
        return default
    seconds = parse_duration(default)
    if seconds is None or seconds > partition.seconds:
        return format_duration(partition.seconds)
    return default
