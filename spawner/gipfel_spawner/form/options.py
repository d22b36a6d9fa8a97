"""What a user chose, as a value: from the form, from a link, from the REST API."""

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

from gipfel_cluster.model import GipfelError, Line
from gipfel_cluster.scheduler.protocol import Memory, Placement

from ..cluster.settings import ClusterName

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
    """Whether an environment can be chosen by this name."""
    return bool(edf) and not edf.startswith(("/", "~")) and bool(_EDF.fullmatch(edf))


class OptionError(GipfelError):
    """An option that can't be; ``field`` is the one of `UserOptions`, empty where it is none of them."""

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
    """What the form asks for; `UserOptions()` means the defaults.

    ``cluster`` is one of the hub's clusters; ``edf`` is the name of an EDF, or a path that begins with ``/``
    or ``~/``; ``gpus``, ``cpus`` and ``memory`` are per node; ``time`` and ``memory`` are in Slurm's syntax;
    ``name`` is the job's; empty means the site's default. ``vet`` is the protocol by which the nodes are
    vetted first; where one is not fit, ``vet_action`` starts no server (``abort``, the default), or one that
    goes on without that node (``shrink``, of several nodes), or starts it all the same (``report``).
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
        # Where the nodes themselves can't be, that is what is said.
        if value == "shrink" and given.data.get("nodes") == 1:
            raise ValueError("of one node none can be left out: ask for several, or start no server then")
        return value


def read_options(content: Mapping[str, Any]) -> UserOptions:
    """Options as the REST API gives them.

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
            f"The value for {FIELDS.get(field, 'an option')} can't be used: {_words(field, first)}.",
            field=field if field in FIELDS else "",
        ) from None


def _words(field: str, error: Any) -> str:
    """What is wrong with a value, for who has never seen a pattern."""
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
    """Options of the form: one text for each field; a path wins over the selected environment.

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
        # Without its script, the form says what would follow also where nothing is vetted.
        del single["vet_action"]
    return read_options({field: value for field, value in single.items() if value or field not in FIELDS})


def read_query(query: Mapping[str, Sequence[Any]]) -> UserOptions:
    """Options of a link: as the form's, but an environment by its name only.

    A link is written by somebody else: it may choose among the user's environments, not bring one.

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
