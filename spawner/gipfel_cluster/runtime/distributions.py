"""The installed distributions that a runtime contains, and the target path of each of their files."""

import json
import posixpath
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..model import GipfelError

#: The directory of pure and compiled packages, relative to the runtime's directory.
SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

#: Distributions that a runtime contains with all that they require, if they are installed where it is built.
OPTIONAL_DISTRIBUTIONS = ("notebook",)

_GIPFEL = "gipfel"
_INSTALLER_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "test"})
_SKIPPED_SOURCES = frozenset({"__pycache__", "node_modules"})
# Reasons: commands are rewritten; a container needs no manuals and headers; only the hub needs its pages
# (60 MB); neither server nor widgets use Arrow Flight (30 MB); the panel has its own plotly.js.
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
# Byte code, files for compilers, and source maps for browsers' debuggers.
_SKIPPED_SUFFIXES = (".pyc", ".a", ".c", ".cc", ".cpp", ".h", ".hpp", ".pyx", ".pxd", ".pxi", ".map")


def required_distributions(extra: str) -> tuple[Distribution, ...]:
    """Return all distributions that ``gipfel[extra]`` requires in this environment, sorted by name.

    Those of `OPTIONAL_DISTRIBUTIONS` that are installed are added.

    Raises
    ------
    GipfelError
        The extra does not exist, or a distribution is not installed in this environment.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415 - only where runtimes are built
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    found: dict[str, Distribution] = {_GIPFEL: _installed(_GIPFEL, extra)}
    offered = found[_GIPFEL].metadata.get_all("Provides-Extra") or []
    if extra not in offered:
        raise GipfelError(f"gipfel has no extra {extra!r}.", f"It has {', '.join(offered) or 'none'}.")
    seen: set[tuple[str, str]] = set()
    pending = [(_GIPFEL, ""), (_GIPFEL, extra)]
    pending += [(name, "") for name in OPTIONAL_DISTRIBUTIONS if any(Distribution.discover(name=name))]
    while pending:
        name, current_extra = pending.pop()
        if (name, current_extra) in seen:
            continue
        seen.add((name, current_extra))
        if name not in found:
            found[name] = _installed(name, extra)
        for text in found[name].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": current_extra}):
                needed = canonicalize_name(requirement.name)
                pending += [(needed, ""), *((needed, other) for other in requirement.extras)]
    return tuple(found[name] for name in sorted(found))


def files(distributions: Iterable[Distribution]) -> dict[str, Path]:
    """Return the target of each file: path below the runtime's directory -> file in this environment."""
    return {
        target: source
        for dist in distributions
        for target, source in distribution_files(dist)
        if not is_skipped(target)
    }


def distribution_files(dist: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield target and source of each file of a distribution; if it is editable, the files of its wheel.

    Raises
    ------
    GipfelError
        The distribution does not list the files that it installed.
    """
    if dist.files is None:
        raise GipfelError(
            f"{dist.name} does not list its files.",
            "Install gipfel[lab] with pip in a virtual environment and build the runtime there.",
        )
    project = editable_project(dist)
    for path in dist.files:
        target = posixpath.normpath(posixpath.join(SITE_PACKAGES, path.as_posix()))
        if path.name in _INSTALLER_FILES and path.parent.suffix == ".dist-info":
            continue
        if project is not None and not path.parts[0].endswith(".dist-info"):
            continue
        source = Path(str(dist.locate_file(path)))
        if source.is_file():
            yield target, source
    if project is not None:
        yield from project_files(project)


def editable_project(dist: Distribution) -> Path | None:
    """Return the source directory of an editable distribution, else None."""
    text = dist.read_text("direct_url.json")
    content = json.loads(text) if text else {}
    if not content.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(content["url"]).path))


def project_files(project: Path) -> Iterator[tuple[str, Path]]:
    """Yield target and source of the files in a source directory's wheel, from its hatchling table.

    Raises
    ------
    GipfelError
        The source directory does not exist, or has no such table.
    """
    try:
        table = tomllib.loads((project / "pyproject.toml").read_text())
        wheel = table["tool"]["hatch"]["build"]["targets"]["wheel"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise GipfelError(
            f"{project} is installed editable and does not define the files of its wheel.",
            f"Install it as a wheel: `{sys.executable} -m pip install {project}`.",
        ) from error
    excluded = tuple(project / path for path in wheel.get("exclude", ()))
    for package in wheel["packages"]:
        folder = project / package
        for source in _walk(folder):
            if not any(source.is_relative_to(path) for path in excluded):
                yield f"{SITE_PACKAGES}/{folder.name}/{source.relative_to(folder).as_posix()}", source
    for origin, target in wheel.get("shared-data", {}).items():
        shared = project / origin
        if shared.is_file():
            yield target, shared
        for source in _walk(shared):
            yield f"{target}/{source.relative_to(shared).as_posix()}", source


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(
            part.startswith(".") or part in _SKIPPED_SOURCES for part in inside.parts
        ):
            yield path


def is_skipped(target: str) -> bool:
    """Return whether a runtime does not contain a file; the path is relative to the runtime's directory."""
    return (
        target.startswith(("../", *_SKIPPED_PREFIXES))
        or target.endswith(_SKIPPED_SUFFIXES)
        or (target.startswith(SITE_PACKAGES) and not _SKIPPED_FOLDERS.isdisjoint(target.split("/")))
    )


def installed_version(name: str) -> str:
    """Return the version of a distribution in this environment; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _installed(name: str, extra: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise GipfelError(
            f"gipfel[{extra}] needs {name}, which is not installed in {sys.prefix}.",
            f"Install it with `{sys.executable} -m pip install 'gipfel[{extra}]'`.",
        ) from error
