"""EDFs checked, one or many: every error and warning as a value."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from .dialects import Dialect
from .here import check_here, check_mount, unseen
from .resolve import Resolution, resolve
from .show import as_json, show_edf

__all__ = ["as_json", "check_edf", "check_edfs", "check_here", "check_mount", "show_edf"]


def check_edf(
    name_or_path: str,
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: bool = False,
    dialect: Dialect = "ce",
) -> Resolution:
    """Resolve an EDF, with ``here`` also against this machine; errors are in the result."""
    resolution = resolve(name_or_path, environment=environment, directory=directory, dialect=dialect)
    if resolution.edf is None or not here:
        return resolution
    found = (*check_here(resolution.edf), *unseen(resolution.edf))
    return Resolution(
        resolution.file,
        None if any(each.severity == "error" for each in found) else resolution.edf,
        (*resolution.diagnostics, *found),
        resolution.origins,
    )


def check_edfs(
    names: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: bool = False,
    dialect: Dialect = "ce",
) -> list[Resolution]:
    """Check every EDF that is named; a folder stands for the ``.toml`` files in it."""
    checked: list[Resolution] = []
    for name in names:
        folder = directory / name
        inside = sorted(folder.glob("*.toml")) if folder.is_dir() else None
        files = [name] if inside is None else [str(path.absolute()) for path in inside]
        checked += [
            check_edf(each, environment=environment, directory=directory, here=here, dialect=dialect)
            for each in files
        ]
    return checked
