"""User options of a start: their model, reading them from form, link or REST API, and a site's presets."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from gipfel_cluster.job.staging import MAX_PATHS, SOURCE
from gipfel_cluster.model import Frozen, GipfelError, OneLine, first_problem, split_list
from gipfel_cluster.scheduler.notation import parse_duration
from gipfel_cluster.scheduler.protocol import Memory, Placement

from ..cluster import ClusterName

_EDF = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+@-]*|~?/.*)?")
_SERVICE = re.compile(r"(?:[a-z0-9](?:-?[a-z0-9]){0,29}|~?/.*\.ya?ml)?")
_MAX_BYTES = 16 << 10
#: The fields of `UserOptions` with their names in messages.
FIELDS = {
    "cluster": "the cluster",
    "edf": "the environment",
    "partition": "the partition",
    "gpus": "GPUs",
    "nodes": "nodes",
    "time": "the time",
    "cpus": "CPUs",
    "memory": "the memory",
    "account": "the account",
    "qos": "the QoS",
    "reservation": "the reservation",
    "name": "the name",
    "engine": "the engine",
    "interface": "the interface",
    "vet": "vetting",
    "vet_action": "the action after a vetting",
    "stage": "the data to copy to the nodes",
    "service": "the service",
    "parameters": "the parameters of the service",
}
#: A form has a field ``parameter.SERVICE.NAME`` for each parameter of each service.
PARAMETER_FIELD = re.compile(r"parameter\.([a-z0-9-]{1,30})\.([A-Za-z_][A-Za-z0-9_]{0,63})")


def is_name(edf: str) -> bool:
    """Return whether this is the name of an environment rather than a path."""
    return bool(edf) and not edf.startswith(("/", "~")) and bool(_EDF.fullmatch(edf))


class OptionError(GipfelError):
    """Error of one option; ``field`` is the name of its field in `UserOptions`, empty for no single field."""

    def __init__(self, problem: str, fix: str = "", *, field: str = "") -> None:
        super().__init__(problem, fix)
        self.field = field


def _matching(pattern: re.Pattern[str], message: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value) or not value.isprintable():
            raise ValueError(message)
        return value

    return AfterValidator(check)


_BLUEPRINT = _matching(
    _SERVICE, "give the name of a blueprint, or the path of its file, which begins with / or ~/"
)
_ENVIRONMENT = _matching(_EDF, "give the name of an environment, or a path that begins with / or ~/")


def _reject_boolean(value: object) -> object:
    # pydantic converts true to 1.
    if isinstance(value, bool):
        raise ValueError("give a number")  # noqa: TRY004 - pydantic reports a ValueError as a validation error
    return value


def _paths(value: str) -> str:
    paths = split_list(value)
    if not all(re.match(SOURCE, each) for each in paths):
        raise ValueError(
            "give absolute paths, or such as shared:imagenet.sqsh or s3://bucket/key, separated by spaces"
        )
    if len(paths) > MAX_PATHS:
        raise ValueError(f"give at most {MAX_PATHS} paths")
    return " ".join(paths)


_Number = BeforeValidator(_reject_boolean)


class UserOptions(Placement):
    """Options of one start; `UserOptions()` are the defaults.

    ``cluster`` is one of the hub's clusters; ``edf`` is the name of an EDF, or a path that begins with ``/``
    or ``~/``; ``gpus``, ``cpus`` and ``memory`` are per node; ``time`` and ``memory`` are in Slurm's syntax;
    ``name`` is the job's name. Empty means the site's default. ``interface`` is the page that the user is
    taken to, JupyterLab's or Jupyter Notebook's. ``vet`` is the protocol of a vetting of the nodes before the
    server starts; empty for none. If a node fails the vetting, ``vet_action`` decides: start no server
    (``abort``, the default), start it without that node (``shrink``, with several nodes) or start it anyway
    (``report``). ``stage`` is data that is copied to every node first: paths separated by spaces, absolute or
    below a storage class such as ``shared:x``. ``service`` is the blueprint of a service to run instead of a
    notebook server, with its ``parameters``.
    """

    cluster: ClusterName = ""
    edf: Annotated[OneLine, Field(max_length=4096), _ENVIRONMENT] = ""
    gpus: Annotated[Annotated[int, Field(ge=0, le=64)] | None, _Number] = None
    nodes: Annotated[int, Field(ge=1, le=4096), _Number] = 1
    cpus: Annotated[Annotated[int, Field(ge=1, le=4096)] | None, _Number] = None
    memory: Memory = ""
    name: Annotated[OneLine, Field(max_length=64, pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")] = ""
    engine: Annotated[OneLine, Field(max_length=32, pattern=r"^(?:[a-z][a-z0-9_-]*)?$")] = ""
    interface: Literal["", "lab", "notebook"] = ""
    vet: Annotated[OneLine, Field(max_length=64, pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")] = ""
    vet_action: Literal["", "abort", "shrink", "report"] = ""
    stage: Annotated[OneLine, Field(max_length=4096), AfterValidator(_paths)] = ""
    service: Annotated[OneLine, Field(max_length=4096), _BLUEPRINT] = ""
    parameters: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")],
        Annotated[OneLine, Field(max_length=4096)],
    ] = Field(default_factory=dict, max_length=64)

    @field_validator("vet_action")
    @classmethod
    def _check_shrink(cls, value: str, info: ValidationInfo) -> str:
        # If `nodes` is not valid, it is not in the data and has its own error.
        if value == "shrink" and info.data.get("nodes") == 1:
            raise ValueError("shrink needs several nodes: request more nodes, or choose abort or report")
        return value


def read_options(content: Mapping[str, Any]) -> UserOptions:
    """Return the options of a JSON object, as from the REST API.

    Raises
    ------
    OptionError
        A field is unknown or not valid, or the object is longer than 16 KiB of JSON.
    """
    if len(json.dumps(dict(content), default=str)) > _MAX_BYTES:
        raise OptionError("The options are too long.", f"Give at most {_MAX_BYTES} bytes of JSON.")
    try:
        return UserOptions.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise OptionError(
                f"There is no option {field[:40]!r}.", f"The options are {', '.join(FIELDS)}."
            ) from None
        raise OptionError(
            f"The value for {FIELDS.get(field, 'an option')} is not valid: {_value_error(field, first)}.",
            field=field if field in FIELDS else "",
        ) from None


def _value_error(field: str, error: Any) -> str:
    """Return a pydantic error in plain language, without regular expressions."""
    context: Mapping[str, Any] = error.get("ctx", {})
    messages = {
        "string_pattern_mismatch": "give letters, digits, dots, dashes and underscores",
        "too_long": f"give at most {context.get('max_length')} characters",
        "string_too_long": f"give at most {context.get('max_length')} characters",
        "string_type": "give a string",
        "string_unicode": "give a valid Unicode string",
        "literal_error": f"give {context.get('expected')}",
        "less_than_equal": f"give at most {context.get('le')}",
        "greater_than_equal": f"give at least {context.get('ge')}",
    }
    if str(error["type"]).startswith(("int_", "finite_")):
        return "give a whole number"
    if field == "memory" and "length" not in context:
        return "give an amount such as 64G"
    return messages.get(error["type"], str(error["msg"]).removeprefix("Value error, "))


def read_form(form: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Return the options of a submitted form; a path takes precedence over the selected environment.

    Raises
    ------
    OptionError
        A field is unknown, is given twice or is not valid.
    """
    single: dict[str, Any] = {}
    parameters: dict[tuple[str, str], str] = {}
    for field, values in form.items():
        if len(values) != 1 or not isinstance(values[0], str):
            raise OptionError(f"The field {field[:40]!r} needs one value.")
        if match := PARAMETER_FIELD.fullmatch(field):
            parameters[match[1], match[2]] = values[0].strip()
        else:
            single[field] = values[0].strip()
    # Without JavaScript, the form sends the parameters of all services. An empty one means its default.
    chosen = {
        name: value
        for (service, name), value in parameters.items()
        if value and service == single.get("service")
    }
    if chosen:
        single["parameters"] = chosen
    if path := single.pop("edf_path", ""):
        single["edf"] = path
    if not single.get("vet") and single.get("vet_action") == "abort":
        # Without JavaScript, the form sends an action even if no vetting is chosen.
        del single["vet_action"]
    return read_options({field: value for field, value in single.items() if value or field not in FIELDS})


def read_query(query: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Return the options of a link, which are the form's except for the path of an environment.

    Since another person may have written the link, it can only choose one of the user's own environments.

    Raises
    ------
    OptionError
        As for `read_form`, or the environment is a path.
    """
    options = read_form(query)
    if options.edf.startswith(("/", "~")):
        raise OptionError(
            "A link can't name an environment by its path.", "Enter the path in the form.", field="edf"
        )
    if options.stage:
        raise OptionError("A link can't name data to copy.", "Enter its path in the form.", field="stage")
    if options.service.startswith(("/", "~")):
        raise OptionError(
            "A link can't name a blueprint by its path.", "Choose a service in the form.", field="service"
        )
    return options


class Preset(Frozen):
    """Named set of options; the site's defaults apply to the options that it leaves out."""

    title: Annotated[OneLine, Field(min_length=1, max_length=40)]
    description: Annotated[OneLine, Field(max_length=120)] = ""
    options: UserOptions = UserOptions()

    @property
    def text(self) -> str:
        """Description, else a summary of the options."""
        return self.description or describe_options(self.options)


def read_presets(configured: Sequence[object]) -> tuple[tuple[Preset, ...], tuple[str, ...]]:
    """Return the presets of a site's configuration, and one line for each that is not valid."""
    presets: list[Preset] = []
    problems: list[str] = []
    for number, content in enumerate(configured, 1):
        if not isinstance(content, Mapping):
            problems.append(_problem(number, "It is not a dictionary."))
            continue
        try:
            options = {key: content[key] for key in content if key not in {"title", "description"}}
            presets.append(
                Preset(
                    title=content.get("title", ""),
                    description=content.get("description", ""),
                    options=read_options(options),
                )
            )
        except ValidationError as error:
            problems.append(_problem(number, f"{': '.join(first_problem(error))}."))
        except GipfelError as error:
            problems.append(_problem(number, str(error)))
    return tuple(presets), tuple(problems)


def describe_options(options: UserOptions) -> str:
    """Return a summary of the options, such as ``4 GPUs · 2 nodes · 8 h · pytorch``."""
    parts = [f"service {options.service}"] if options.service else []
    if options.gpus is not None:
        parts.append(f"{options.gpus} GPU{'' if options.gpus == 1 else 's'}")
    if options.nodes != 1:
        parts.append(f"{options.nodes} nodes")
    parts += [
        each
        for each in (describe_time(options.time), options.edf, options.cluster, options.partition)
        if each
    ]
    if options.interface == "notebook":
        parts.append("Jupyter Notebook")
    return " · ".join(parts) or "the defaults"


def describe_time(time: str) -> str:
    """Return a time limit in Slurm's syntax with units, such as ``1 d 12 h``; empty for an empty string."""
    seconds = parse_duration(time) if time else 0
    if seconds is None:
        return "no time limit"
    parts = (
        (seconds // 86400, "d"),
        (seconds // 3600 % 24, "h"),
        (seconds // 60 % 60, "min"),
        (seconds % 60, "s"),
    )
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _problem(number: int, problem: str) -> str:
    return f"Preset {number} is not valid: {problem} Tell the hub's administrators."
