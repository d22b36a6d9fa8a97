"""The spawn form, rendered from `FormContent`: clusters, the user's environments, presets and defaults.

The fields of the section for a new environment are generated from the EDF's JSON Schema.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, Template

from gipfel_cluster.job.service_orders import ServiceOffer
from gipfel_cluster.model import Frozen
from gipfel_cluster.scheduler.notation import GpuCount, format_duration
from gipfel_cluster.scheduler.protocol import Choices, Partition

from .options import PARAMETER_FIELD, Preset, UserOptions, describe_options, describe_time
from .validation import max_gpus_per_node

Kind = Literal["text", "boolean", "list", "table"]


class EnvironmentField(Frozen):
    """Form field for one key of an EDF.

    ``kind`` is how a value is typed: a list as one item per line, a table as one ``NAME=value`` per line.
    """

    key: str
    title: str
    kind: Kind
    description: str
    default: bool = False
    pattern: str = ""
    #: An example value.
    example: str = ""


@cache
def environment_fields() -> Mapping[str, EnvironmentField]:
    """Return a field for each key of the EDF's schema, in its order."""
    schema = json.loads((files("gipfel_cluster.edf") / "schema.json").read_text(encoding="utf-8"))
    return {key: _field(key, value) for key, value in schema["properties"].items()}


def _field(key: str, value: dict[str, Any]) -> EnvironmentField:
    kinds: dict[str, Kind] = {"string": "text", "boolean": "boolean", "array": "list", "object": "table"}
    known = {str(each.get("type", "object")) for each in value.get("anyOf", [value])}
    kind: Kind = "list" if "array" in known else kinds[known.pop()]
    return EnvironmentField(
        key=key,
        title=value.get("title", key.replace("_", " ").title()),
        kind=kind,
        description=value["description"],
        default=value.get("default") is True,
        pattern=next(iter(value.get("patternProperties", {})), ""),
        example=_field_text(next(iter(value.get("examples", [])), "")),
    )


def _field_text(value: object) -> str:
    """Return a value in the syntax of its form field."""
    if isinstance(value, dict):
        return "\n".join(f"{name}={each}" for name, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


class FieldError(Frozen):
    """Error of the last submission; ``field`` is empty if it concerns no single field."""

    field: str = ""
    message: str


class ClusterOffer(Frozen):
    """Partitions, choices and engines that one cluster offers; ``problems`` has a line per failed query."""

    name: str
    partitions: tuple[Partition, ...] = ()
    #: Age of the scheduler's answer in seconds; 0 while it is current.
    age: float = 0.0
    choices: Choices = Choices()
    engines: tuple[str, ...] = ()
    has_notebook: bool = False
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
    def account_used(self) -> str:
        """The account of a job that names none, empty if it is unknown."""
        return self.choices.default_account or _only(self.accounts)

    @property
    def qos_used(self) -> str:
        """The QoS of a job that names none, empty if it is unknown."""
        own = (each for each in self.choices.associations or () if each.account == self.account_used)
        return _only(sorted({each.default_qos for each in own if each.default_qos})) or _only(self.qos)

    @property
    def more_engines(self) -> tuple[str, ...]:
        """Engines other than the cluster's default one."""
        return self.engines[1:]


def _only(names: Sequence[str]) -> str:
    """Return the name of a list that has one; else empty."""
    return names[0] if len(names) == 1 else ""


class PresetButton(Frozen):
    """Button of a preset, which sets the form's fields to ``values``.

    ``unavailable`` says why it can't be chosen on this cluster; it is empty if it can.
    """

    title: str
    text: str
    values: dict[str, str]
    unavailable: str = ""


class PartitionRow(Frozen):
    """Row of the table of partitions; each field is a text, empty if it is unknown.

    ``nodes`` and ``gpus`` are such as ``5 of 8`` idle; ``limit`` is the time limit of a job.
    """

    name: str
    nodes: str
    gpus: str
    limit: str
    default: bool = False


def partition_rows(partitions: Sequence[Partition]) -> tuple[PartitionRow, ...]:
    """Return a row for each partition: free and total nodes, GPUs and the time limit."""
    return tuple(
        PartitionRow(
            name=each.name,
            nodes=f"{each.idle_nodes} of {each.nodes}" if each.nodes else "",
            gpus=idle_gpus(each).removesuffix(" idle").replace(" idle,", ",")
            or ("none" if each.gpus_known else ""),
            limit="" if each.time_limit_s is None else format_limit(each.time_limit_s),
            default=each.default,
        )
        for each in partitions
    )


def format_limit(seconds: int) -> str:
    """Return a time limit with units, such as ``1 d 12 h``."""
    return describe_time(format_duration(seconds))


class FormContent(Frozen):
    """Content of the form; ``problems`` has a line for each query that failed.

    ``cluster`` is the selected cluster; ``partitions``, ``choices`` and ``engines`` belong to it. ``last``
    are the options of the last start, ``defaults`` the site's, ``initial`` those that the form shows first.
    """

    cluster: str
    #: The clusters to choose from, the default one first; empty if there is only one.
    clusters: tuple[ClusterOffer, ...] = ()
    environments: tuple[str, ...] = ()
    #: Services that can be started instead of a notebook.
    services: tuple[ServiceOffer, ...] = ()
    partitions: tuple[Partition, ...] = ()
    #: Age of the scheduler's answer in seconds; 0 while it is current.
    age: float = 0.0
    choices: Choices = Choices()
    engines: tuple[str, ...] = ()
    #: Whether servers have Jupyter Notebook, on every cluster.
    has_notebook: bool = False
    #: Vetting protocols to choose from.
    vetting: tuple[str, ...] = ()
    presets: tuple[Preset, ...] = ()
    last: UserOptions | None = None
    defaults: UserOptions = UserOptions()
    initial: UserOptions = UserOptions()
    #: The submitted values, if they were not valid as `UserOptions`.
    typed: dict[str, str] | None = None
    field_error: FieldError | None = None
    cpus_per_gpu: int = 0
    memory_per_gpu: str = ""
    problems: tuple[str, ...] = ()
    #: Lines on the GPU hours that the user used and has left.
    gpu_hours: tuple[str, ...] = ()
    #: The hub's base URL for scripts and API requests; empty for a page without scripts.
    hub: str = ""
    user: str = ""


def render_form(content: FormContent) -> str:
    """Return the form's fields as HTML; all values are escaped."""
    shown = shown_values(content)
    return _template().render(
        content=content,
        shown=shown,
        partitions=_described(content.partitions),
        clusters=[(each, _described(each.partitions)) for each in content.clusters],
        table=_table(content),
        max_nodes=_max_nodes(content),
        offer=ClusterOffer(name=content.cluster, choices=content.choices),
        hides=_single_choices(content, shown),
        selected_partition=_selected_partition(content, shown["partition"]),
        max_gpus_per_node=_max_gpus(
            [each for offer in content.clusters for each in offer.partitions] or content.partitions
        ),
        presets=[_button(each.title, each.text, each.options, content) for each in content.presets],
        last=_button("Last used", describe_options(content.last), content.last, content)
        if content.last
        else None,
        fields=environment_fields(),
        version=_version(),
    )


def _described(partitions: Sequence[Partition]) -> list[tuple[Partition, str, str]]:
    return [(each, describe_partition(each), idle_gpus(each)) for each in partitions]


def shown_values(content: FormContent) -> dict[str, str]:
    """Return the text of each field: as submitted, else of the chosen options, else the site's default."""
    if content.typed is not None:
        empty = dict.fromkeys((*UserOptions.model_fields, "edf_path"), "")
        return empty | {
            key: value
            for key, value in content.typed.items()
            if key in empty or PARAMETER_FIELD.fullmatch(key)
        }
    return preset_values(content.initial, content)


def preset_values(options: UserOptions, content: FormContent) -> dict[str, str]:
    """Return the values of the form's fields for the given options."""
    listed = options.edf in {"", *content.environments}
    gpus = content.defaults.gpus if options.gpus is None else options.gpus
    values = {field: str(value or "") for field, value in options.model_dump(exclude={"parameters"}).items()}
    parameters = {f"parameter.{options.service}.{key}": text for key, text in options.parameters.items()}
    default = content.clusters[0].name if content.clusters else ""
    listed_service = options.service in {"", *(each.name for each in content.services)}
    return (values | parameters) | {
        "service": options.service if listed_service else "",
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
        title=title,
        text=text,
        values=values,
        unavailable=_why_unavailable(int(values["gpus"]), options, content),
    )


def _why_unavailable(gpus: int, options: UserOptions, content: FormContent) -> str:
    """Return why no eligible partition has enough GPUs per node; empty if one has, or if that is unknown."""
    offers = [each for each in content.clusters if options.cluster in {"", each.name}]
    offered = (
        [each for offer in offers for each in offer.partitions] if content.clusters else content.partitions
    )
    eligible = [each for each in offered if options.partition in {"", each.name}]
    counts = [max_gpus_per_node(each) for each in eligible]
    known = [each for each in counts if each is not None]
    if not known or len(known) < len(counts) or gpus <= max(known):
        return ""
    return f"needs {gpus} GPU{'' if gpus == 1 else 's'}; this machine has {max(known) or 'none'}"


def describe_partition(partition: Partition) -> str:
    """Return a summary such as ``normal: 5 of 8 gh200 idle · 2 of 8 nodes idle · up to 2:00:00``."""
    parts = [idle_gpus(partition)] if partition.gpus else []
    parts.append(f"{partition.idle_nodes} of {partition.nodes} nodes idle")
    if partition.time_limit_s is not None:
        parts.append(f"up to {format_duration(partition.time_limit_s)}")
    return f"{partition.name}: {' · '.join(parts)}"


def idle_gpus(partition: Partition) -> str:
    """Return idle GPUs by type, such as ``37 of 128 gh200 idle``; GPUs per node if only that is known."""
    if not partition.total_gpus:
        return ", ".join(f"{each.count} {each.type or 'GPU'} per node" for each in partition.gpus)
    idle = {each.type: each.count for each in partition.idle_gpus}
    return ", ".join(
        f"{idle.get(each.type, 0)} of {each.count} {_gpu_noun(each)} idle" for each in partition.total_gpus
    )


def describe_age(seconds: float) -> str:
    """Return an age such as ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _gpu_noun(gpus: GpuCount) -> str:
    return gpus.type or ("GPU" if gpus.count == 1 else "GPUs")


def _selected_partition(content: FormContent, requested: str) -> str:
    names = {each.name for each in content.partitions}
    default = next((each.name for each in content.partitions if each.default), "")
    return requested if requested in names else default


def _max_gpus(partitions: Sequence[Partition]) -> int:
    counts = [max_gpus_per_node(each) for each in partitions]
    return 64 if not counts or None in counts else max(each or 0 for each in counts)


def _table(content: FormContent) -> list[tuple[str, PartitionRow]]:
    """Return the rows of the table of partitions with their cluster, an empty name for the only one."""
    if content.clusters:
        return [(offer.name, row) for offer in content.clusters for row in partition_rows(offer.partitions)]
    return [("", row) for row in partition_rows(content.partitions)]


def _single_choices(content: FormContent, shown: Mapping[str, str]) -> dict[str, bool]:
    """Return by field whether it has one choice on each cluster: no other than what a job gets without it."""
    offers = content.clusters or (ClusterOffer(name=content.cluster, choices=content.choices),)
    return {
        field: (content.field_error is None or content.field_error.field != field)
        and all(_is_single(getattr(offer, names), getattr(offer, used), shown[field]) for offer in offers)
        for field, names, used in (("account", "accounts", "account_used"), ("qos", "qos", "qos_used"))
    }


def _is_single(names: Sequence[str], used: str, chosen: str) -> bool:
    return not names or (tuple(names) == (used,) and chosen in {"", used})


def _max_nodes(content: FormContent) -> int:
    """Return the number of nodes of the largest partition on offer; 0 if it is unknown."""
    offered = [each for offer in content.clusters for each in offer.partitions] or content.partitions
    return max((each.nodes for each in offered), default=0)


@cache
def _template() -> Template:
    loader = PackageLoader("gipfel_spawner")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader)
    environment.filters["age"] = describe_age
    return environment.get_template("form.html")


@cache
def _version() -> str:
    """Return a hash of the static files, so that browsers reload changed ones."""
    folder = files("gipfel_spawner") / "static"
    names = ("duration", "edfcheck", "form", "security", "service", "environment")
    paths = (*(folder / f"{name}.js" for name in names), folder / "form.css")
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def typed_values(form: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a submitted form to show them again, with limited lengths."""
    return {
        str(field)[:40]: str(values[0])[:4096]
        for field, values in list(form.items())[:40]
        if isinstance(values, list) and values and isinstance(values[0], str)
    }
