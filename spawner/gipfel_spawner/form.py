"""The spawn form: one page without a script, filled from the scheduler and the user's environments."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, Template

from gipfel_cluster.model import Frozen, GipfelError
from gipfel_cluster.scheduler.durations import format_duration
from gipfel_cluster.scheduler.protocol import Partition, Scheduler

from .options import UserOptions, read_options


class FormContent(Frozen):
    """What the form shows; ``problems`` are lines on what could not be asked."""

    cluster: str
    environments: tuple[str, ...] = ()
    default_edf: str = ""
    partitions: tuple[Partition, ...] = ()
    chosen: UserOptions = UserOptions()
    default_gpus: int = 0
    default_time: str = ""
    problems: tuple[str, ...] = ()


async def fill_form(
    scheduler: Scheduler,
    environments: Callable[[], Awaitable[tuple[str, ...]]],
    chosen: Mapping[str, Any],
    *,
    cluster: str,
    default_edf: str,
    default_gpus: int,
    default_time: str,
) -> FormContent:
    """Ask for what the form shows; whatever does not answer becomes a line in it."""
    problems: list[str] = []
    partitions: tuple[Partition, ...] = ()
    names: tuple[str, ...] = ()
    try:
        partitions = await scheduler.partitions()
    except GipfelError as error:
        problems.append(str(error))
    try:
        names = await environments()
    except GipfelError as error:
        problems.append(str(error))
    try:
        options = read_options(chosen)
    except GipfelError:
        # Options that an older version wrote.
        options = UserOptions()
    return FormContent(
        cluster=cluster,
        environments=names,
        default_edf=default_edf,
        partitions=partitions,
        chosen=options,
        default_gpus=default_gpus,
        default_time=default_time,
        problems=tuple(problems),
    )


def render_form(content: FormContent) -> str:
    """The fields as HTML; everything in it is escaped."""
    chosen = content.chosen
    listed = chosen.edf in {"", *content.environments}
    return _template().render(
        content=content,
        partitions=[(each, describe_partition(each)) for each in content.partitions],
        selected_edf=chosen.edf if listed else "",
        path="" if listed else chosen.edf,
        gpus=content.default_gpus if chosen.gpus is None else chosen.gpus,
        most_gpus=_most_gpus(content.partitions),
        time=chosen.time or content.default_time,
    )


def describe_partition(partition: Partition) -> str:
    """A partition in one line, such as ``normal: 3 of 8 nodes idle · 4 gh200 each · up to 1-00:00:00``."""
    parts = [f"{partition.idle} of {partition.nodes} nodes idle"]
    if partition.gpus:
        gpus = ", ".join(f"{each.count} {each.type or 'GPU'}" for each in partition.gpus)
        parts.append(f"{gpus} each")
    if partition.seconds is not None:
        parts.append(f"up to {format_duration(partition.seconds)}")
    return f"{partition.name}: {' · '.join(parts)}"


def _most_gpus(partitions: Sequence[Partition]) -> int:
    return max((sum(each.count for each in partition.gpus) for partition in partitions), default=0) or 64


@cache
def _template() -> Template:
    source = (files(__package__) / "templates" / "form.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
