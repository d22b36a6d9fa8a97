"""The installed distributions that a runtime holds, and the target of each of their files."""

import json
import posixpath
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..model import GipfelError

#: Where pure and compiled packages go, relative to the runtime's directory.
SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

_GIPFEL = "gipfel"
_INSTALLER_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "test"})
_SKIPPED_SOURCES = frozenset({"__pycache__", "node_modules"})
# Commands are rewritten; manuals and headers are of no use in a container; the hub's pages (60 MB) are
# shown by the hub alone; Arrow's network service (30 MB) is a module that neither server nor widgets open;
# the panel draws plotly's figures, and a page needs one plotly.js.
_SKIPPED_PREFIXES = (
    "bin/",
    "include/",
    "share/man/",
    "share/jupyterhub/static/",
    "share/jupyter/labextensions/jupyterlab-plotly/",
    f"{SITE_PACKAGES}/pyarrow/include/",
    f"{SITE_PACKAGES}/pyarrow/libarrow_flight",
    f"{SITE_PACKAGES}/pyarrow/libarrow_python_flight",
    f"{SITE_PACKAGES}/pyarrow/_flight",
    f"{SITE_PACKAGES}/pyarrow/_pyarrow_cpp_tests",
)
# What a compiler reads, and maps that only a debugger of the browser reads.
_SKIPPED_SUFFIXES = (".pyc", ".a", ".c", ".cc", ".cpp", ".h", ".hpp", ".pyx", ".pxd", ".pxi", ".map")


def closure(extra: str) -> tuple[Distribution, ...]:
    """Return every distribution that ``gipfel[extra]`` needs here, with extras and markers, sorted by name.

    Raises
    ------
    GipfelError
        There is no such extra, or one of them is not installed in this environment.
    """
    try:
        from packaging.requirements import Requirement  # noqa: PLC0415 - only where runtimes are built
        from packaging.utils import canonicalize_name  # noqa: PLC0415
    except ImportError as error:
        raise _incomplete("packaging", extra) from error
    found: dict[str, Distribution] = {_GIPFEL: _installed(_GIPFEL, extra)}
    offered = found[_GIPFEL].metadata.get_all("Provides-Extra") or []
    if extra not in offered:
        raise GipfelError(f"gipfel has no extra {extra!r}.", f"It has {', '.join(offered) or 'none'}.")
    seen: set[tuple[str, str]] = set()
    wanted = [(_GIPFEL, ""), (_GIPFEL, extra)]
    while wanted:
        name, of_extra = wanted.pop()
        if (name, of_extra) in seen:
            continue
        seen.add((name, of_extra))
        if name not in found:
            found[name] = _installed(name, extra)
        for text in found[name].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": of_extra}):
                needed = canonicalize_name(requirement.name)
                wanted += [(needed, ""), *((needed, other) for other in requirement.extras)]
    return tuple(found[name] for name in sorted(found))


def files(distributions: Iterable[Distribution]) -> dict[str, Path]:
    """Return the target of each file: path below the runtime's directory -> file in this environment."""
    return {
        target: source
        for one in distributions
        for target, source in distribution_files(one)
        if not is_skipped(target)
    }


def distribution_files(one: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield target and source of each file of one distribution; an editable one as its wheel would have it.

    Raises
    ------
    GipfelError
        The distribution does not list the files that it installed.
    """
    if one.files is None:
        raise GipfelError(
            f"{one.name} does not list its files.",
            "Install gipfel[lab] with pip in a virtual environment and build the runtime there.",
        )
    project = editable_project(one)
    for path in one.files:
        target = posixpath.normpath(posixpath.join(SITE_PACKAGES, path.as_posix()))
        if path.name in _INSTALLER_FILES and path.parent.suffix == ".dist-info":
            continue
        if project is not None and not path.parts[0].endswith(".dist-info"):
            continue
        source = Path(str(one.locate_file(path)))
        if source.is_file():
            yield target, source
    if project is not None:
        yield from project_files(project)


def editable_project(one: Distribution) -> Path | None:
    """Return the source directory of a distribution that was installed editable, else None."""
    text = one.read_text("direct_url.json")
    content = json.loads(text) if text else {}
    if not content.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(content["url"]).path))


def project_files(project: Path) -> Iterator[tuple[str, Path]]:
    """Yield target and source of what the wheel of a source directory holds, by its hatchling table.

    Raises
    ------
    GipfelError
        The source directory is gone, or has no such table.
    """
    try:
        table = tomllib.loads((project / "pyproject.toml").read_text())
        wheel = table["tool"]["hatch"]["build"]["targets"]["wheel"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise GipfelError(
            f"{project} is installed editable and does not define what its wheel holds.",
            f"Install it as a wheel: `{sys.executable} -m pip install {project}`.",
        ) from error
    excluded = tuple(project / path for path in wheel.get("exclude", ()))
    for package in wheel["packages"]:
        folder = project / package
        for source in _walk(folder):
            if not any(source.is_relative_to(path) for path in excluded):
                yield f"{SITE_PACKAGES}/{folder.name}/{source.relative_to(folder).as_posix()}", source
    for origin, target in wheel.get("shared-data", {}).items():
        place = project / origin
        if place.is_file():
            yield target, place
        for source in _walk(place):
            yield f"{target}/{source.relative_to(place).as_posix()}", source


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(
            part.startswith(".") or part in _SKIPPED_SOURCES for part in inside.parts
        ):
            yield path


def is_skipped(target: str) -> bool:
    """Return whether a file is left out; its path is relative to the runtime's directory."""
    return (
        target.startswith(("../", *_SKIPPED_PREFIXES))
        or target.endswith(_SKIPPED_SUFFIXES)
        or (target.startswith(SITE_PACKAGES) and not _SKIPPED_FOLDERS.isdisjoint(target.split("/")))
    )


def _installed(name: str, extra: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise _incomplete(name, extra) from error


def _incomplete(name: str, extra: str) -> GipfelError:
    return GipfelError(
        f"gipfel[{extra}] needs {name}, which is not installed in {sys.prefix}.",
        f"Install it with `{sys.executable} -m pip install 'gipfel[{extra}]'`.",
    )
