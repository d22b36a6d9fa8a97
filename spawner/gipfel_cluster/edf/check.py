"""EDFs checked, one or many: every error and warning as a value."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .dialects import Dialect
from .here import check_here, check_mount, unseen
from .inherit import Bases
from .lookup import find_edf
from .model import Diagnostic, EdfError, most_important
from .resolve import Resolution, resolve
from .setup import SUFFIX, orphans
from .show import as_json, show_edf

__all__ = ["as_json", "check_edf", "check_edfs", "check_here", "check_mount", "is_folder", "show_edf"]


def check_edf(
    name_or_path: str,
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: bool = False,
    dialect: Dialect = "ce",
    bases: Bases | None = None,
) -> Resolution:
    """Resolve an EDF, with ``here`` also against this machine; errors are in the result."""
    resolution = resolve(
        name_or_path,
        environment=environment,
        directory=directory,
        dialect=dialect,
        bases=bases,
        job_variables=True,
    )
    return with_here(resolution) if here else resolution


def with_here(resolution: Resolution) -> Resolution:
    """Add what `check_here` and `unseen` say, with the file and line that ask for what is not here."""
    if resolution.edf is None:
        return resolution
    seen = (*check_here(resolution.edf), *unseen(resolution.edf))
    found = tuple(_placed(each, resolution) for each in seen)
    return Resolution(
        resolution.file,
        None if any(each.severity == "error" for each in found) else resolution.edf,
        most_important((*resolution.diagnostics, *found), resolution.file),
        resolution.places,
        resolution.setup,
    )


def _placed(diagnostic: Diagnostic, resolution: Resolution) -> Diagnostic:
    """Name the file and line that ask for what is not here, which may be those of a base."""
    entry = resolution.places.get(diagnostic.key)
    if entry is None:
        return diagnostic
    return entry.diagnostic(diagnostic.code, diagnostic.message, diagnostic.fix, severity=diagnostic.severity)


def check_edfs(
    names: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    here: bool = False,
    dialect: Dialect = "ce",
) -> list[Resolution]:
    """Check every EDF that is named; a folder stands for the ``.toml`` files in it.

    Set-up steps that no EDF stands beside are in the result too, as a warning and without an EDF.
    """
    checked: list[Resolution] = []
    bases = Bases()
    for name in names:
        files, alone = _files(name, environment, directory)
        checked += [
            check_edf(
                file, environment=environment, directory=directory, here=here, dialect=dialect, bases=bases
            )
            for file in files
        ]
        checked += [Resolution(each.file, None, (each,)) for each in alone]
    return checked


def is_folder(name: str, *, environment: Mapping[str, str], directory: Path) -> bool:
    """Whether a name stands for a folder of EDFs: a folder's path, or a bare name that is no EDF's."""
    # A Path for each of thousands is slow.
    if not name or not os.path.isdir(os.path.join(directory.absolute(), name)):  # noqa: PTH112, PTH118
        return False
    if "/" in name or name.startswith((".", "~")):
        return True
    try:
        find_edf(name, environment=environment, directory=directory)
    except EdfError:
        return True
    return False


def _files(
    name: str, environment: Mapping[str, str], directory: Path
) -> tuple[list[str], tuple[Diagnostic, ...]]:
    """The EDFs that a name stands for, and what is to be said about set-up steps without one."""
    folder = os.path.normpath(os.path.join(directory.absolute(), name))  # noqa: PTH118
    if name.endswith(SUFFIX) and os.path.isfile(folder):  # noqa: PTH113
        path = Path(folder)
        present = [each.name for each in path.parent.iterdir()]
        alone = tuple(each for each in orphans(str(path.parent), present) if each.file == str(path))
        return ([] if alone else [f"{folder.removesuffix(SUFFIX)}.toml"]), alone
    if not is_folder(name, environment=environment, directory=directory):
        return [name], ()
    try:
        inside = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return [name], ()
    files = [f"{folder}/{each}" for each in inside if each.endswith(".toml")]
    return files, tuple(orphans(folder, inside))
