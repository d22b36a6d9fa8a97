"""Options of a start as a value: read from form, link or REST API; and a site's presets of them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from gipfel_cluster.model import Frozen, GipfelError, Line
from gipfel_cluster.scheduler.notation import parse_duration
from gipfel_cluster.scheduler.protocol import Memory, Placement

from ..cluster.clusters import ClusterName

_EDF = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+@-]*|~?/.*)?")
_MOST_BYTES = 16 << 10
#: The fields of `UserOptions`, as a message names them.
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
    "vet": "vetting",
    "vet_action": "what follows a vetting",
}


def is_name(edf: str) -> bool:
    """Return whether an environment can be chosen by this name."""
    return bool(edf) and not edf.startswith(("/", "~")) and bool(_EDF.fullmatch(edf))


class OptionError(GipfelError):
    """An option that can't be used; ``field`` is the one of `UserOptions`, empty where it is none of them."""

    def __init__(self, problem: str, fix: str = "", *, field: str = "") -> None:
        super().__init__(problem, fix)
        self.field = field


def _name_or_path(value: str) -> str:
    if not _EDF.fullmatch(value) or not value.isprintable():
        raise ValueError("give the name of an environment, or a path that begins with / or ~/")
    return value


def _no_truth(value: object) -> object:
    # pydantic takes true for 1.
    if isinstance(value, bool):
        raise ValueError("give a number")  # noqa: TRY004 - pydantic's word for a value that can't be
    return value


_Number = BeforeValidator(_no_truth)


class UserOptions(Placement):
    """Options of one start; `UserOptions()` means the defaults.

    ``cluster`` is one of the hub's clusters; ``edf`` is the name of an EDF, or a path that begins with ``/``
    or ``~/``; ``gpus``, ``cpus`` and ``memory`` are per node; ``time`` and ``memory`` are in Slurm's syntax;
    ``name`` is the job's; empty means the site's default. ``vet`` is the protocol by which the nodes are
    vetted first; where one is not fit, ``vet_action`` starts no server (``abort``, the default), or one that
    goes on without that node (``shrink``, of several nodes), or starts it nevertheless (``report``).
    """

    cluster: ClusterName = ""
    edf: Annotated[Line, Field(max_length=4096), AfterValidator(_name_or_path)] = ""
    gpus: Annotated[Annotated[int, Field(ge=0, le=64)] | None, _Number] = None
    nodes: Annotated[int, Field(ge=1, le=4096), _Number] = 1
    cpus: Annotated[Annotated[int, Field(ge=1, le=4096)] | None, _Number] = None
    memory: Memory = ""
    name: Annotated[Line, Field(max_length=64, pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")] = ""
    engine: Annotated[Line, Field(max_length=32, pattern=r"^(?:[a-z][a-z0-9_-]*)?$")] = ""
    vet: Annotated[Line, Field(max_length=64, pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")] = ""
    vet_action: Literal["", "abort", "shrink", "report"] = ""

    @field_validator("vet_action")
    @classmethod
    def _leaves_a_node(cls, value: str, given: ValidationInfo) -> str:
        # Nodes that are not valid have their own error.
        if value == "shrink" and given.data.get("nodes") == 1:
            raise ValueError("of one node none can be left out: ask for several, or start no server then")
        return value


def read_options(content: Mapping[str, Any]) -> UserOptions:
    """Return options that the REST API gave.

    Raises
    ------
    OptionError
        A field is not known or holds what it may not, or all are more than 16 KiB of JSON.
    """
    if len(json.dumps(dict(content), default=str)) > _MOST_BYTES:
        raise OptionError("The options are too long.", f"Give at most {_MOST_BYTES} bytes.")
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
            f"The value for {FIELDS.get(field, 'an option')} can't be used: {_value_error(field, first)}.",
            field=field if field in FIELDS else "",
        ) from None


def _value_error(field: str, error: Any) -> str:
    """Return what is wrong with a value, for readers who have never seen a pattern."""
    given: Mapping[str, Any] = error.get("ctx", {})
    known = {
        "string_pattern_mismatch": "give letters, digits, dots, dashes and underscores",
        "too_long": f"give at most {given.get('max_length')} characters",
        "string_too_long": f"give at most {given.get('max_length')} characters",
        "string_type": "give a text",
        "string_unicode": "give a text that is Unicode",
        "literal_error": f"give {given.get('expected')}",
        "less_than_equal": f"give at most {given.get('le')}",
        "greater_than_equal": f"give at least {given.get('ge')}",
    }
    if str(error["type"]).startswith(("int_", "finite_")):
        return "give a whole number"
    if field == "memory" and "length" not in given:
        return "give an amount such as 64G"
    return known.get(error["type"], str(error["msg"]).removeprefix("Value error, "))


def read_form(form: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Return the options of a form: one text for each field; a path wins over the selected environment.

    Raises
    ------
    OptionError
        A field is not known, comes twice or holds what it may not.
    """
    single: dict[str, Any] = {}
    for field, values in form.items():
        if len(values) != 1 or not isinstance(values[0], str):
            raise OptionError(f"The field {field[:40]!r} needs one value.")
        single[field] = values[0].strip()
    path = single.pop("edf_path", "")
    if path:
        single["edf"] = path
    if not single.get("vet") and single.get("vet_action") == "abort":
        # Without its script, the form sends an action also where nothing is vetted.
        del single["vet_action"]
    return read_options({field: value for field, value in single.items() if value or field not in FIELDS})


def read_query(query: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Return the options of a link: as the form's, but an environment by its name only.

    A link may be written by another person: it may choose among the user's environments, not bring one.

    Raises
    ------
    OptionError
        As `read_form`, and for a path.
    """
    options = read_form(query)
    if options.edf.startswith(("/", "~")):
        raise OptionError(
            "A link can't bring an environment by its path.", "Choose it in the form.", field="edf"
        )
    return options


class Preset(Frozen):
    """A named choice; the site's defaults stand for what its ``options`` leave out."""

    title: Annotated[Line, Field(min_length=1, max_length=40)]
    description: Annotated[Line, Field(max_length=120)] = ""
    options: UserOptions = UserOptions()

    @property
    def text(self) -> str:
        """Description, else a summary of the options."""
        return self.description or describe_options(self.options)


def read_presets(given: Sequence[object]) -> tuple[tuple[Preset, ...], tuple[str, ...]]:
    """Return the presets of a site's configuration, and one line for each that can't be used."""
    presets: list[Preset] = []
    problems: list[str] = []
    for number, content in enumerate(given, 1):
        if not isinstance(content, Mapping):
            problems.append(_problem(number, "it is not a dictionary."))
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
            first = error.errors(include_url=False, include_input=False)[0]
            problems.append(_problem(number, f"its {first['loc'][0]}: {first['msg']}."))
        except GipfelError as error:
            problems.append(_problem(number, str(error)))
    return tuple(presets), tuple(problems)


def describe_options(options: UserOptions) -> str:
    """Return the options in a few words: ``4 GPUs · 2 nodes · 8 h · pytorch``."""
    words = []
    if options.gpus is not None:
        words.append(f"{options.gpus} GPU{'' if options.gpus == 1 else 's'}")
    if options.nodes != 1:
        words.append(f"{options.nodes} nodes")
    words += [
        each
        for each in (describe_time(options.time), options.edf, options.cluster, options.partition)
        if each
    ]
    return " · ".join(words) or "the defaults"


def describe_time(time: str) -> str:
    """Return a time limit in Slurm's syntax in words, ``1 d 12 h``; empty for an empty text."""
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


def _problem(number: int, what: str) -> str:
    return f"Preset {number} can't be used: {what} Tell the hub's administrators."
