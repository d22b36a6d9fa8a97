"""Read and find blueprints: the user's, the site's, those of packages, and Gipfel's, in this order.

The user's are in ``~/.gipfel/blueprints``, the site's in the directories of ``$GIPFEL_BLUEPRINTS``. A package
names a module whose directory has blueprints, as an entry point of the group ``gipfel.blueprints``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gipfel_cluster.definition_files import (
    SUFFIXES,
    DefinitionFile,
    FileDiagnostic,
    definition_directories,
    definition_paths,
)
from gipfel_cluster.model import GipfelError
from gipfel_cluster.yaml_document import suggestion

from .blueprint import Blueprint, cross_problems

VARIABLE = "GIPFEL_BLUEPRINTS"
_SHIPPED = Path(__file__).parent / "catalogue"
_FILE = DefinitionFile(Blueprint, "blueprint", "Write 'name', 'title' and 'parts'.", cross_problems)


def read_blueprint(path: Path) -> Blueprint:
    """Return the blueprint of a file.

    Raises
    ------
    GipfelError
        The file can't be read or has a mistake; the message is about the first one.
    """
    return _FILE.read(path)


def check_blueprint(path: Path) -> tuple[Blueprint | None, tuple[FileDiagnostic, ...]]:
    """Return a file's blueprint, or None and its mistakes, at most 20, in the order of their lines."""
    return _FILE.check(path)


def blueprint_schema() -> dict[str, Any]:
    """Return the JSON Schema of blueprints, for editors."""
    return _FILE.json_schema("Blueprint of gipfel service")


def known_blueprints(
    environment: Mapping[str, str],
) -> tuple[dict[str, tuple[str, Blueprint]], tuple[FileDiagnostic, ...]]:
    """Return all blueprints by name, each with its origin, and the mistakes in files that can't be used."""
    found: dict[str, tuple[str, Blueprint]] = {}
    problems: list[FileDiagnostic] = []
    for origin, directory in definition_directories("blueprints", VARIABLE, _SHIPPED, environment):
        for path in definition_paths(directory):
            blueprint, diagnostics = check_blueprint(path)
            problems += diagnostics
            if blueprint is not None:
                found.setdefault(blueprint.name, (origin, blueprint))
    return found, tuple(problems)


def find_blueprint(name: str, *, directory: Path, environment: Mapping[str, str]) -> Blueprint:
    """Return the blueprint of a file's path, which has a slash or a suffix, or of a name.

    Raises
    ------
    GipfelError
        There is none, or it has a mistake.
    """
    if "\0" in name or len(name) > 4096:
        raise GipfelError("The name of the blueprint is not valid.", "See `gipfel service blueprints`.")
    if "/" in name or name.endswith(SUFFIXES):
        return read_blueprint(Path(directory, Path(name).expanduser()))
    known, problems = known_blueprints(environment)
    if name in known:
        return known[name][1]
    broken = next((each for each in problems if Path(each.file).stem == name), None)
    if broken is not None:
        raise GipfelError(str(broken), broken.fix)
    fix = suggestion(name, known) or "See `gipfel service blueprints`."
    raise GipfelError(f"There is no blueprint {name[:80]!r}.", fix)
