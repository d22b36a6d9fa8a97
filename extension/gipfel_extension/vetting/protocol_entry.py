"""One entry of a protocol: its keys become a check that can be run, or say why it can't."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from gipfel_cluster.model import one_line

from .checks.registry import UnknownCheck, check_class
from .model import Scope
from .protocol import ProtocolCheck
from .protocol_yaml import YamlMapping
from .quantities import quantity
from .threshold import Threshold

#: Keys that every entry may have; vetnode's entries, too.
KEYS = (
    "name", "type", "scope", "severity", "time_limit", "threshold", "tolerate_degraded", "skip_if_alone",
    "requirements", "parameters",
)  # fmt: skip
#: Keys whose values are taken as they are.
_AS_WRITTEN = ("severity", "tolerate_degraded", "skip_if_alone")


def entry_of(document: Mapping[str, Any], *, line: int = 0) -> ProtocolCheck:
    """The check that an entry of our own protocols describes; with its `problem` where it can't be run."""
    lines = getattr(document, "lines", {})
    type_ = str(document.get("type") or "")
    name = str(document.get("name") or type_ or "without a name")[:200]
    name = one_line(name) or "without a name"
    unknown = [key for key in document if key not in KEYS]
    if unknown:
        at = lines.get(unknown[0], line)
        fix = near(unknown[0], KEYS) or "Parameters of a check stand below 'parameters'."
        return broken(name, type_, at, f"{unknown[0][:60]!r} is no key of a check.", fix)
    if not type_:
        return broken(name, "", line, "This check has no type.", "Give it a type, such as temperature.")
    try:
        found = check_class(type_)
    except UnknownCheck as error:
        return broken(name, type_, lines.get("type", line), error.problem, _instead(error))
    return validated(document, name, type_, found, line)


def validated(  # noqa: PLR0911 - one for each part that can be wrong
    document: Mapping[str, Any], name: str, type_: str, found: Any, line: int
) -> ProtocolCheck:
    """The entry, with scope, threshold and parameters looked at."""
    lines = getattr(document, "lines", {})
    scopes = getattr(found, "scopes", (found.scope,))
    scope = document.get("scope", found.scope)
    if scope not in [str(each) for each in scopes]:
        can = ", ".join(scopes)
        return broken(
            name, type_, lines.get("scope", line), f"The scope of {type_} can be: {can}.", "Choose one."
        )
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        return broken(
            name, type_, lines.get("parameters", line), "'parameters' holds no keys.", "Write KEY: VALUE."
        )
    try:
        found.model_validate(dict(parameters))
    except ValidationError as error:
        return broken(name, type_, *_first(error, parameters, line, _fields(found)))
    except RecursionError:
        return broken(name, type_, line, "The parameters are nested too deep.", "")
    requirements = document.get("requirements") or []
    requirements = [requirements] if isinstance(requirements, str) else requirements
    values = {
        "name": name, "type": type_, "scope": Scope(scope), "line": line,
        "parameters": dict(parameters), "threshold": document.get("threshold"), "requirements": requirements,
        **{key: document[key] for key in _AS_WRITTEN if document.get(key) is not None},
    }  # fmt: skip
    try:
        if document.get("time_limit") is not None:
            values["time_limit_s"] = quantity(document["time_limit"])
        return ProtocolCheck.model_validate(values)
    except ValidationError as error:
        return broken(name, type_, *_first(error, document, line, KEYS))
    except ValueError as error:
        return broken(
            name, type_, lines.get("time_limit", line), f"The time limit {error}.", "Write it as 30 s."
        )


def broken(name: str, type_: str, line: int, problem: str, fix: str) -> ProtocolCheck:
    """An entry that can't be run."""
    # What it quotes is the file's: it must not drive a terminal.
    return ProtocolCheck(
        name=name, type=one_line(type_)[:80] or "unknown", line=line, problem=one_line(problem)[:600], fix=fix
    )


def near(word: str, known: Iterable[str]) -> str:
    """``Did you mean 'x'?``, or an empty string where nothing is near."""
    found = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"Did you mean {found[0]!r}?" if found else ""


def telling(error: ValidationError) -> Any:
    """The part of an error that says most: an unknown key is often the one that another part misses."""
    parts = error.errors(include_url=False, include_input=False)
    return next((part for part in parts if part["type"] == "extra_forbidden"), parts[0])


def _instead(error: UnknownCheck) -> str:
    return f"Did you mean {error.near!r}?" if error.near else "`gipfel vet --list` names what there is."


def _fields(found: Any) -> tuple[str, ...]:
    return tuple(getattr(found, "model_fields", {}))


def _first(
    error: ValidationError, document: Mapping[str, Any], line: int, known: tuple[str, ...]
) -> tuple[int, str, str]:
    """Line, problem and fix of the first thing that is wrong."""
    wrong = telling(error)
    path = [str(part) for part in wrong["loc"]]
    place: Any = document
    for part in path:
        if isinstance(place, YamlMapping):
            line = place.lines.get(part, line)
        place = place.get(part) if isinstance(place, Mapping) else None
    word = ".".join(path)[:120]
    if wrong["type"] == "extra_forbidden":
        known = tuple(Threshold.model_fields) if path[0] == "threshold" else known
        return (
            line,
            f"{word!r} is not known here.",
            near(path[-1], known) or f"Known are: {', '.join(known)}.",
        )
    message = str(wrong["msg"]).removeprefix("Value error, ")
    return line, f"{word or 'This'}: {message}.", "Mend the value."
