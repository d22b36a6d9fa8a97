"""Read a blueprint's YAML file; each mistake is one line with the file's line number, and its fix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.yaml_document import YamlMapping, line_of, read_yaml, suggestion

from .blueprint import Blueprint, cross_problems

SUFFIXES = (".yaml", ".yml")
_MAX_BYTES = 800_000
_MAX_DIAGNOSTICS = 20
_JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class BlueprintDiagnostic(Frozen):
    """A mistake in a blueprint's file: line (0 if there is none), problem and fix."""

    file: str
    line: int
    problem: str
    fix: str

    def __str__(self) -> str:
        where = f", line {self.line}" if self.line else ""
        return f"{self.file}{where}: {self.problem}"


def read_blueprint(path: Path) -> Blueprint:
    """Return the blueprint of a file.

    Raises
    ------
    GipfelError
        The file can't be read or has a mistake; the message is about the first one.
    """
    blueprint, diagnostics = check_blueprint(path)
    if blueprint is None:
        raise GipfelError(str(diagnostics[0]), diagnostics[0].fix)
    return blueprint


def check_blueprint(path: Path) -> tuple[Blueprint | None, tuple[BlueprintDiagnostic, ...]]:
    """Return a file's blueprint, or None and its mistakes, at most 20, in the order of their lines."""
    try:
        text = read_regular(path.resolve(), _MAX_BYTES).decode()
    except UnicodeDecodeError:
        return None, (_diagnostic(path, 0, "this is not UTF-8 text.", "Name a YAML file."),)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return None, (_diagnostic(path, 0, f"this can't be read: {reason}.", "Name a blueprint's file."),)
    try:
        document = read_yaml(text, str(path), "blueprint", "Write 'name', 'title' and 'parts'.")
    except GipfelError as error:
        return None, (
            BlueprintDiagnostic(file=str(path), line=0, problem=_without(error, path), fix=error.fix),
        )
    try:
        blueprint = Blueprint.model_validate(document)
    except (ValidationError, RecursionError) as error:
        found = sorted(_model_diagnostics(error, document, path), key=lambda each: each.line)
        return None, tuple(found[:_MAX_DIAGNOSTICS])
    problems = [
        _diagnostic(path, line_of(document, each.path), f"{each.problem}.", each.fix)
        for each in cross_problems(blueprint)
    ]
    if problems:
        return None, tuple(sorted(problems, key=lambda each: each.line)[:_MAX_DIAGNOSTICS])
    return blueprint, ()


def blueprint_schema() -> dict[str, Any]:
    """Return the JSON Schema of blueprints, for editors."""
    return {"$schema": _JSON_SCHEMA, **Blueprint.model_json_schema(), "title": "Blueprint of gipfel service"}


def _model_diagnostics(
    error: ValidationError | RecursionError, document: YamlMapping, path: Path
) -> Iterator[BlueprintDiagnostic]:
    if isinstance(error, RecursionError):
        yield _diagnostic(path, 0, "this is nested too deeply.", "Shorten it.")
        return
    seen: set[str] = set()
    for each in error.errors(include_url=False, include_input=False):
        location = tuple(part for part in each["loc"] if part != "[key]" and part not in _UNION_TAGS)
        key = ".".join(str(part) for part in location)[:120]
        if key in seen:
            continue
        seen.add(key)
        line = line_of(document, location)
        if each["type"] == "extra_forbidden":
            known = _known_keys(location)
            fix = suggestion(str(location[-1]), known) or f"Known keys: {', '.join(known)}."
            yield _diagnostic(path, line, f"{key!r} is not a known key.", fix)
        elif each["type"] == "missing":
            yield _diagnostic(path, line, f"{key!r} is missing.", "Add this key.")
        else:
            message = str(each["msg"]).removeprefix("Value error, ").rstrip(".")
            yield _diagnostic(path, line, f"{key or 'this'}: {message}.", "Correct the value.")


#: Names that pydantic adds to the path of an error in a union.
_UNION_TAGS = frozenset(("bool", "int", "float", "str"))


def _known_keys(location: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return the keys of the model in which an unknown key was found."""
    model: Any = Blueprint
    for part in location[:-1]:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(part))
            model = field.annotation if field else None
        else:
            # A mapping or a tuple: the model of its values.
            model = next(
                (
                    each
                    for each in reversed(get_args(model))
                    if isinstance(each, type) and issubclass(each, BaseModel)
                ),
                None,
            )
    return tuple(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else ()


def _diagnostic(path: Path, line: int, problem: str, fix: str) -> BlueprintDiagnostic:
    return BlueprintDiagnostic(
        file=str(path), line=line, problem=one_line(problem)[:600], fix=one_line(fix)[:600]
    )


def _without(error: GipfelError, path: Path) -> str:
    """Return the problem without the file's name, which `BlueprintDiagnostic` adds."""
    return error.problem.removeprefix(str(path)).lstrip(" ,:")
