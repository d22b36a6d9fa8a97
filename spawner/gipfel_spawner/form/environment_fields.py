"""The fields of a new environment, from the JSON Schema of the EDF."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from gipfel_cluster.model import Frozen

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
    """The keys of the schema, in its order."""
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
    """A value as it is typed into its field."""
    if isinstance(value, dict):
        return "\n".join(f"{name}={each}" for name, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
