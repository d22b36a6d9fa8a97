"""The spawn form: one page without a script, filled from the scheduler and the user's environments."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler.durations import format_duration
from gipfel_cluster.scheduler.protocol import Partition
from jinja2 import Environment, Template

from .options import UserOptions


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
