"""Spawn form: filled from what the hub knows of the cluster and from the user's environments.

The fields of a new environment come from the JSON Schema of the EDF.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, Template

from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler.notation import GpuCount, format_duration
from gipfel_cluster.scheduler.protocol import Choices, Partition

from .fit import most_gpus
from .options import Preset, UserOptions, describe_options

Kind = Literal["text", "boolean", "list", "table"]


class EnvironmentField(Frozen):
    """One key of an EDF as a field: a list has an item a line, a table ``NAME=value`` a line."""

    key: str
    title: str
    kind: Kind
    description: str
    default: bool = False
    pattern: str = ""
    #: How a value may look.
    example: str = ""


@cache
def environment_fields() -> tuple[EnvironmentField, ...]:
    """Return the keys of the schema, in its order."""
    schema = json.loads((files("gipfel_cluster.edf") / "schema.json").read_text(encoding="utf-8"))
    return tuple(_field(key, value) for key, value in schema["properties"].items())


def _field(key: str, value: dict[str, Any]) -> EnvironmentField:
    kinds: dict[str, Kind] = {"string": "text", "boolean": "boolean", "array": "list", "object": "table"}
    options = value.get("anyOf", [value])
    known = {str(each.get("type", "object")) for each in options}
    kind: Kind = "list" if "array" in known else kinds[known.pop()]
    return EnvironmentField(
        key=key,
        title=value.get("title", key.replace("_", " ").title()),
        kind=kind,
        description=value["description"],
        default=value.get("default") is True,
        pattern=next(iter(value.get("patternProperties", {})), ""),
        example=_typed(next(iter(value.get("examples", [])), "")),
    )


def _typed(value: object) -> str:
    """Return a value as it is typed into its field."""
    if isinstance(value, dict):
        return "\n".join(f"{name}={each}" for name, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


class FieldError(Frozen):
    """Error of the last attempt; ``field`` is empty where it concerns no single field."""

    field: str = ""
    message: str


class ClusterOffer(Frozen):
    """Offer of one cluster; ``problems`` are lines on what could not be asked."""

    name: str
    partitions: tuple[Partition, ...] = ()
    #: Age of the scheduler's answer in seconds; 0 while it is current.
    age: float = 0.0
    choices: Choices = Choices()
    engines: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def accounts(self) -> tuple[str, ...]:
        """Accounts of the user."""
        return self.choices.accounts

    @property
    def qos(self) -> tuple[str, ...]:
        """QoS of the user."""
        return self.choices.qos()

    @property
    def reservations(self) -> tuple[str, ...]:
        """Reservations that the user may use."""
        return tuple(each.name for each in self.choices.reservations or ())

    @property
    def more_engines(self) -> tuple[str, ...]:
        """Engines beside the cluster's own."""
        return self.engines[1:]


class PresetButton(Frozen):
    """A preset as the form shows it; ``lacking`` is why it can't be chosen here, empty where it can."""

    title: str
    text: str
    values: dict[str, str]
    lacking: str = ""


class FormContent(Frozen):
    """Content of the form; ``problems`` are lines on what could not be asked.

    ``partitions``, ``choices`` and ``engines`` are those of ``cluster``, the one that is shown as chosen.
    """

    cluster: str
    #: All that can be chosen, the default one first; empty where there is only one.
    clusters: tuple[ClusterOffer, ...] = ()
    environments: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    #: Age of the scheduler's answer in seconds; 0 while it is current.
    age: float = 0.0
    choices: Choices = Choices()
    engines: tuple[str, ...] = ()
    #: Protocols by which nodes can be vetted first.
    vetting: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = ()
    last: UserOptions | None = None
    defaults: UserOptions = UserOptions()
    chosen: UserOptions = UserOptions()
    #: As typed, where it was not valid as `UserOptions`.
    typed: dict[str, str] | None = None
    field_error: FieldError | None = None
    cpus_per_gpu: int = 0
    memory_per_gpu: str = ""
    problems: tuple[str, ...] = ()
    #: Where the page's script and its questions go; empty for a page without them.
    hub: str = ""
    user: str = ""


def render_form(content: FormContent) -> str:
    """Return the fields as HTML; everything in it is escaped."""
    shown = shown_values(content)
    return _template().render(
        content=content,
        shown=shown,
        partitions=_described(content.partitions),
        clusters=[(each, _described(each.partitions)) for each in content.clusters],
        selected_partition=_selected_partition(content, shown["partition"]),
        most_gpus=_most_gpus(
            [each for offer in content.clusters for each in offer.partitions] or content.partitions
        ),
        presets=[_button(each.title, each.text, each.options, content) for each in content.presets],
        last=_button("Last", describe_options(content.last), content.last, content) if content.last else None,
        fields=_fields(),
        version=_version(),
    )


def _described(partitions: Sequence[Partition]) -> list[tuple[Partition, str, str]]:
    return [(each, describe_partition(each), idle_gpus(each)) for each in partitions]


def shown_values(content: FormContent) -> dict[str, str]:
    """Return the text of each field: as it was typed, else what was chosen, else the site's default."""
    if content.typed is not None:
        empty = dict.fromkeys((*UserOptions.model_fields, "edf_path"), "")
        return empty | {key: value for key, value in content.typed.items() if key in empty}
    return preset_values(content.chosen, content)


def preset_values(options: UserOptions, content: FormContent) -> dict[str, str]:
    """Return the values of the form's fields for some options."""
    listed = options.edf in {"", *content.environments}
    gpus = content.defaults.gpus if options.gpus is None else options.gpus
    values = {field: str(value or "") for field, value in options.model_dump().items()}
    default = content.clusters[0].name if content.clusters else ""
    return values | {
        "cluster": options.cluster or default,
        "edf": options.edf if listed else "",
        "edf_path": "" if listed else options.edf,
        "gpus": str(gpus or 0),
        "time": options.time or content.defaults.time,
        "partition": options.partition or content.defaults.partition,
        "vet_action": options.vet_action or "abort",
    }


def _button(title: str, text: str, options: UserOptions, content: FormContent) -> PresetButton:
    values = preset_values(options, content)
    return PresetButton(
        title=title, text=text, values=values, lacking=_lacking(int(values["gpus"]), options, content)
    )


def _lacking(gpus: int, options: UserOptions, content: FormContent) -> str:
    """Return why no partition that these options may mean has so many GPUs in a node; empty where one may."""
    offers = [each for each in content.clusters if options.cluster in {"", each.name}]
    offered = (
        [each for offer in offers for each in offer.partitions] if content.clusters else content.partitions
    )
    meant = [each for each in offered if options.partition in {"", each.name}]
    most = [most_gpus(each) for each in meant]
    known = [each for each in most if each is not None]
    if not known or len(known) < len(most) or gpus <= max(known):
        return ""
    return f"needs {gpus} GPU{'' if gpus == 1 else 's'}; this machine has {max(known) or 'none'}"


def describe_partition(partition: Partition) -> str:
    """Return a partition in one line: ``normal: 5 of 8 gh200 idle · 2 of 8 nodes idle · up to 2:00:00``."""
    parts = [idle_gpus(partition)] if partition.gpus else []
    parts.append(f"{partition.idle} of {partition.nodes} nodes idle")
    if partition.seconds is not None:
        parts.append(f"up to {format_duration(partition.seconds)}")
    return f"{partition.name}: {' · '.join(parts)}"


def idle_gpus(partition: Partition) -> str:
    """Return idle GPUs by type: ``37 of 128 gh200 idle``; a node's GPUs, where only these are known."""
    if not partition.all_gpus:
        return ", ".join(f"{each.count} {each.type or 'GPU'} each" for each in partition.gpus)
    idle = {each.type: each.count for each in partition.idle_gpus}
    return ", ".join(
        f"{idle.get(each.type, 0)} of {each.count} {_gpu_word(each)} idle" for each in partition.all_gpus
    )


def describe_age(seconds: float) -> str:
    """Return an age in words: ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _gpu_word(gpus: GpuCount) -> str:
    return gpus.type or ("GPU" if gpus.count == 1 else "GPUs")


def _selected_partition(content: FormContent, chosen: str) -> str:
    names = {each.name for each in content.partitions}
    default = next((each.name for each in content.partitions if each.default), "")
    return chosen if chosen in names else default


def _most_gpus(partitions: Sequence[Partition]) -> int:
    most = [most_gpus(each) for each in partitions]
    return 64 if not most or None in most else max(each or 0 for each in most)


@cache
def _template() -> Template:
    loader = PackageLoader("gipfel_spawner")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader)
    environment.filters["age"] = describe_age
    return environment.get_template("form.html")


@cache
def _fields() -> Mapping[str, EnvironmentField]:
    return {each.key: each for each in environment_fields()}


@cache
def _version() -> str:
    """Return a version that changes with the static files, so that a browser loads the new ones."""
    folder = files("gipfel_spawner") / "static"
    names = ("duration.js", "form.js", "environment.js", "form.css")
    return sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:12]


def typed_values(form: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a form, cut to what a page may show again."""
    return {
        str(field)[:40]: str(values[0])[:4096]
        for field, values in list(form.items())[:40]
        if isinstance(values, list) and values and isinstance(values[0], str)
    }
