"""Find blueprints: the user's, the site's, those of installed packages, and those of Gipfel, in this order.

The user's are in ``~/.gipfel/blueprints``, the site's in the directories of ``$GIPFEL_BLUEPRINTS``. A package
names a module whose directory has blueprints, as an entry point of the group ``gipfel.blueprints``.
"""

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.yaml_document import suggestion

from .blueprint import Blueprint
from .blueprint_file import SUFFIXES, BlueprintDiagnostic, check_blueprint, read_blueprint

ENTRY_POINTS = "gipfel.blueprints"
VARIABLE = "GIPFEL_BLUEPRINTS"
_SHIPPED = Path(__file__).parent / "catalogue"
_MAX_FILES = 500


def blueprint_directories(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the directories of blueprints, each with its origin; the first one that has a name wins."""
    yield "user", Path(environment.get("HOME") or Path.home()) / ".gipfel" / "blueprints"
    for each in environment.get(VARIABLE, "").split(os.pathsep):
        if each:
            yield "site", Path(each).expanduser()
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        # The module is located, not imported: a blueprint is data.
        try:
            spec = find_spec(point.module)
        except (ImportError, ValueError):
            continue
        for directory in (spec.submodule_search_locations or ()) if spec else ():
            yield point.name, Path(directory)
    yield "gipfel", _SHIPPED


def known_blueprints(
    environment: Mapping[str, str],
) -> tuple[dict[str, tuple[str, Blueprint]], tuple[BlueprintDiagnostic, ...]]:
    """Return all blueprints by name, each with its origin, and the mistakes in files that can't be used."""
    found: dict[str, tuple[str, Blueprint]] = {}
    problems: list[BlueprintDiagnostic] = []
    for origin, directory in blueprint_directories(environment):
        for path in _files(directory):
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


def _files(directory: Path) -> list[Path]:
    try:
        listed = sorted(each for each in directory.iterdir() if each.suffix in SUFFIXES)
    except OSError:
        return []
    return listed[:_MAX_FILES]
