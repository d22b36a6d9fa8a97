"""A JSON Schema of our protocols, so that an editor completes keys and marks mistakes while one types."""

from typing import Any

from .checks.registry import UnknownCheck, check_class, check_types
from .model import Severity
from .protocol_entry import KEYS
from .protocol_vetnode import PREFIX
from .threshold import Limits, Threshold

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def protocol_schema() -> dict[str, Any]:
    """The schema, with the parameters of every installed check; vetnode's entries may hold any key."""
    entries: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for type_ in check_types():
        try:
            found: Any = check_class(type_)
        except UnknownCheck:
            # One that can't be imported can't be used either.
            continue
        parameters = found.model_json_schema(ref_template=f"#/$defs/{type_}.{{model}}")
        for name, schema in parameters.pop("$defs", {}).items():
            definitions[f"{type_}.{name}"] = schema
        entries.append(_entry(type_, found, parameters))
    entries.append(
        {"properties": {"type": {"type": "string", "pattern": f"^{PREFIX}"}}, "required": ["type"]}
    )
    definitions["threshold"] = _threshold()
    return {
        "$schema": _DIALECT,
        "title": "Protocol of gipfel vet",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "description": {"type": "string"},
            "time_limit": {"type": ["number", "string"]},
            "checks": {"type": "array", "items": {"anyOf": entries}},
            "evals": {"type": "array"},
        },
        "$defs": definitions,
    }


def _entry(type_: str, found: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        "name": {"type": "string"},
        "type": {"const": type_},
        "scope": {"enum": [str(each) for each in getattr(found, "scopes", (found.scope,))]},
        "severity": {"enum": [str(each) for each in Severity]},
        "time_limit": {"type": ["number", "string"]},
        "tolerate_degraded": {"type": "boolean"},
        "skip_if_alone": {"type": "boolean"},
        "threshold": {"$ref": "#/$defs/threshold"},
        "requirements": {"type": "array", "items": {"type": "string"}},
        "parameters": _loosened(parameters),
    }
    properties = {key: known[key] for key in KEYS}
    return {"type": "object", "properties": properties, "required": ["type"], "additionalProperties": False}


def _threshold() -> dict[str, Any]:
    schema = _loosened(Threshold.model_json_schema())
    schema.pop("$defs", None)
    schema["properties"]["by_model"] = {
        "type": "object",
        "additionalProperties": _loosened(Limits.model_json_schema()),
    }
    return schema


def _loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with a string allowed wherever a number is: people write quantities with their units."""
    loose = dict(schema)
    loose["properties"] = {
        name: {"anyOf": [each, {"type": "string"}], "title": name} if _numeric(each) else each
        for name, each in schema.get("properties", {}).items()
    }
    return loose


def _numeric(schema: dict[str, Any]) -> bool:
    parts = [schema, *schema.get("anyOf", ())]
    return any(part.get("type") in {"number", "integer"} for part in parts)
