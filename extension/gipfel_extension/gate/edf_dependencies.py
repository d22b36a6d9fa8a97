"""Judge what an EDF installs: files named by its set-up steps, requirements beside it, mounted settings.

:func:`with_dependencies` adds findings to the results of `check_edfs`. ``gipfel scan`` judges files alike.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from gipfel_cluster.edf import Diagnostic, Edf, Resolution
from gipfel_cluster.edf.model import limit_diagnostics
from gipfel_cluster.installs import logical_lines, named_paths, variable_problem
from gipfel_cluster.model import one_line

from ..telemetry.files import read_regular
from .dependencies import dependency_findings, is_dependency_file
from .model import Finding
from .package_index import PackageIndex

_MAX_BYTES = 4 << 20
_MOST_FILES = 50
_MOST_BESIDE = 50_000
_LINE = re.compile(r"Line (\d+): ")
_BESIDE = re.compile(r"(.*[-_.])?(requirements|constraints)([-_.].*)?\.txt")
_REQUIREMENTS = "requirements.txt"
_STEPS = "name.setup"
_SETTING_NAMES = frozenset(("pip.conf", "pip.ini", "uv.toml", ".npmrc"))
#: Variables that name a file, and the standard file name that selects how that file is judged.
_VARIABLES = {
    "PIP_CONFIG_FILE": "pip.conf",
    "PIP_REQUIREMENT": _REQUIREMENTS,
    "PIP_CONSTRAINT": _REQUIREMENTS,
    "UV_CONFIG_FILE": "uv.toml",
    "UV_CONSTRAINT": _REQUIREMENTS,
    "NPM_CONFIG_USERCONFIG": ".npmrc",
}
#: Where pip, uv and npm look for settings; a mounted directory may hold them.
_SETTINGS = (
    *("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf"),
    *("/etc/uv/uv.toml", "~/.config/uv/uv.toml", "~/.npmrc"),
)


class _File(NamedTuple):
    """A file on this machine, the file name that selects how it is judged, and the EDF key that names it."""

    path: Path
    kind: str
    key: str = ""


def with_dependencies(
    checked: Sequence[Resolution], environment: Mapping[str, str], *, here: bool = False
) -> list[Resolution]:
    """Return the results with findings on what each EDF installs; a file that several EDFs name counts once.

    Parameters
    ----------
    here
        Whether to also note what can't be judged without a mirror of the package index.
    """
    judge = _Judge(environment, here=here)
    return [judge.with_findings(each) for each in checked]


class _Judge:
    """Judges EDFs one after another, and remembers directory listings and judged files in between."""

    def __init__(self, environment: Mapping[str, str], *, here: bool) -> None:
        self._index = PackageIndex.from_environment(environment)
        self._home, self._here = environment.get("HOME", ""), here
        self._seen: set[str] = set()
        self._beside: dict[Path, dict[str, list[Path]]] = {}

    def with_findings(self, resolution: Resolution) -> Resolution:
        """Return a result with what is wrong with the files that the EDF names."""
        edf = resolution.edf
        known = {(each.file, each.code) for each in resolution.diagnostics}
        several = edf is not None and any(
            getattr(variable_problem(*each), "code", "") == "extra-index" for each in edf.env.items()
        )
        found: list[Diagnostic] = []
        settings = list(islice(_settings(edf, self._home), _MOST_FILES + 1)) if edf else []
        for each in settings[:_MOST_FILES]:
            judged = [*_of_file(each, self._index)]
            several = several or any(one.code == "extra-index" for one in judged)
            found += judged if self._is_new(each) else []
        index = self._index.unused(several=several)
        for steps in resolution.setup:
            findings = dependency_findings(_STEPS, steps.text.encode(), index)
            told = (_diagnostic(each, steps.path, f"setup-{each.rule}") for each in findings)
            # The result already has the findings on shell lines that need no index.
            found += [each for each in told if (each.file, each.code) not in known]
        named = list(islice(self._named(resolution), _MOST_FILES + 1))
        for each in named[:_MOST_FILES]:
            found += _of_file(each, index) if self._is_new(each) else []
        if max(len(settings), len(named)) > _MOST_FILES:
            line = f"it names more than {_MOST_FILES} files of dependencies: the others could not be judged."
            found.append(_unclear(line, resolution.file))
        found += [_unclear(line, resolution.file) for line in index.not_judged]
        found += [_unclear(line, resolution.file, "note") for line in index.not_scanned if self._here]
        if not found:
            return resolution
        diagnostics = limit_diagnostics((*resolution.diagnostics, *found), resolution.file)
        return dataclasses.replace(resolution, diagnostics=diagnostics)

    def _is_new(self, file: _File) -> bool:
        """Return whether a file was not judged yet, and remember it."""
        path = f"{file.kind} {os.path.realpath(file.path)}"
        new = path not in self._seen
        self._seen.add(path)
        return new

    def _named(self, resolution: Resolution) -> Iterator[_File]:
        """Yield the requirements beside an EDF, and what its mounts, variables and set-up steps name."""
        edf, home = resolution.edf, self._home
        for steps in resolution.setup:
            for _, line in logical_lines(steps.text):
                for path, is_file in named_paths(line):
                    yield from _installed_from(path, steps.path, edf, home, is_file=is_file)
        if edf is None:
            return
        for name in (name for name, kind in _VARIABLES.items() if kind == _REQUIREMENTS):
            places = (_on_host(word, edf, home) for word in edf.env.get(name, "").split())
            yield from (_File(place, _REQUIREMENTS, f"env.{name}") for place in places if place)
        yield from (file for file in _mounted(edf) if file.kind not in _SETTING_NAMES)
        for source in map(Path, edf.sources):
            if source.parent not in self._beside:
                self._beside[source.parent] = _requirements_by_edf(source.parent)
            by_edf = self._beside[source.parent]
            for each in by_edf.get(source.stem, []) + by_edf.get("", []):
                yield _File(each, _REQUIREMENTS)


def _settings(edf: Edf, home: str) -> Iterator[_File]:
    """Yield the settings files that an EDF mounts or names in a variable."""
    for name, kind in _VARIABLES.items():
        if kind != _REQUIREMENTS and (path := _on_host(edf.env.get(name, ""), edf, home)):
            yield _File(path, kind, f"env.{name}")
    yield from (file for file in _mounted(edf) if file.kind in _SETTING_NAMES)
    for place in _SETTINGS if edf.mounts else ():
        if edf.image and (path := _on_host(place, edf, home)):
            yield _File(path, Path(place).name)


def _mounted(edf: Edf) -> Iterator[_File]:
    """Yield the mounted files of dependencies, by their names in the container or on this machine."""
    for position, mount in enumerate(edf.mounts):
        names = (Path(each).name for each in (mount.destination, mount.source))
        if not mount.is_special and (kind := next(filter(is_dependency_file, names), "")):
            yield _File(Path(mount.source), kind, f"mounts[{position}]")


def _installed_from(path: str, steps: str, edf: Edf | None, home: str, *, is_file: bool) -> Iterator[_File]:
    """Yield the files behind a path of a set-up step: requirements, or those of a project's directory."""
    places = [_on_host(path, edf, home)] if edf else []
    if not path.startswith(("/", "~", "$")):
        # Also look beside the steps: authors write paths relative to them, though the steps run in the EDF's
        # working directory.
        places = [*places, Path(steps).parent / path]
    # Not `Path.exists`, which raises for names that are too long.
    place = next((each for each in places if each is not None and os.path.exists(each)), None)  # noqa: PTH110
    if place is not None and is_file:
        yield _File(place, _REQUIREMENTS)
    elif place is not None and os.path.isdir(place):  # noqa: PTH112
        yield from (_File(place / name, name) for name in ("setup.py", "pyproject.toml"))


def _requirements_by_edf(folder: Path) -> dict[str, list[Path]]:
    """Return the requirements files in a directory by the EDF name that they begin with, "" for the rest."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(each.name for each in islice(entries, _MOST_BESIDE))
    except OSError:
        return {}
    stems = [each[:-5] for each in names if each.endswith(".toml")]
    found: dict[str, list[Path]] = {}
    for name in filter(_BESIDE.fullmatch, names):
        named = (stem for stem in stems if name.startswith((f"{stem}-", f"{stem}_", f"{stem}.")))
        found.setdefault(max(named, key=len, default=""), []).append(folder / name)
    return found


def _on_host(path: str, edf: Edf, home: str) -> Path | None:
    """Return the file on this machine that is mounted at a container path; None if it is in the image."""
    path = re.sub(r"^(?:~|\$HOME|\$\{HOME\})(?=/|$)", lambda _: home, path)
    if not path or "$" in path:
        return None
    path = os.path.normpath(os.path.join(edf.workdir or "/", path))  # noqa: PTH118 - a path elsewhere
    if not edf.image:
        return Path(path)
    # With nested mounts, the innermost one holds the file.
    for mount in sorted(edf.mounts, key=lambda each: len(each.destination), reverse=True):
        inside = os.path.normpath(mount.destination)
        if path == inside or path.startswith(f"{inside.rstrip('/')}/"):
            usable = not mount.is_special and "sqsh" not in mount.flags
            return Path(mount.source, path[len(inside) :].lstrip("/")) if usable else None
    return None


def _of_file(file: _File, index: PackageIndex) -> Iterator[Diagnostic]:
    path = str(file.path)
    try:
        findings = dependency_findings(file.kind, read_regular(file.path, _MAX_BYTES, follow=True), index)
    except (FileNotFoundError, NotADirectoryError):
        # `--here` reports a mount whose source is missing. Other missing paths may exist in the image.
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        yield _unclear(f"it could not be judged: {reason[:200]}.", path, key=file.key)
        return
    yield from (_diagnostic(each, path, each.rule, file.key) for each in findings)


def _diagnostic(finding: Finding, file: str, code: str, key: str = "") -> Diagnostic:
    line = _LINE.match(finding.message)
    return Diagnostic(
        severity="note" if finding.severity == "low" else "warning",
        code=code,
        file=file,
        line=int(line[1]) or None if line else None,
        key=key,
        message=finding.message[line.end() :] if line else finding.message,
        fix=finding.fix,
    )


def _unclear(
    line: str, file: str, severity: Literal["warning", "note"] = "warning", *, key: str = ""
) -> Diagnostic:
    return Diagnostic(
        severity=severity, code="not-judged", file=file, line=None, key=key, message=one_line(line)
    )
