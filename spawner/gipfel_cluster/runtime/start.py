"""Start an image's own Python as a kernel: ``python3 <runtime>/kernels/start.py -f CONNECTION_FILE``.

The image's packages take precedence; missing ones come from the runtime's directory for its version of
CPython, at the end of ``sys.path``. This runs with any CPython since 3.9, with the standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import runpy
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, ModuleType

_MAX_PROBLEM = 300
_KERNELS = Path(__file__).resolve().parent
_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
_WIDGETS_FROM = (3, 11)
#: The directory of `gipfel_widgets`, and the option that loads ``%%launch`` from it.
_GIPFEL_PATH = str(_KERNELS / "gipfel")
_LOAD_WIDGETS = "--InteractiveShellApp.extra_extensions=gipfel_widgets"
#: The first and the last supported version of CPython.
SUPPORTED = ((3, 9), (3, 14))


class UnusableError(Exception):
    """The image's Python can't be a kernel; the message is one line."""


def main(arguments: list[str]) -> int:
    """Complete ``sys.path`` and run ipykernel; with ``--check`` only report if that is possible."""
    # Python puts a script's directory first on the path; ipykernel puts the notebook's there.
    sys.path[:] = [path for path in sys.path if not path or Path(path).resolve() != _KERNELS]
    is_checked = arguments == ["--check"]
    problem = ""
    try:
        for line in prepare():
            _log(line)
        # Also for --check: only this import detects a missing library or a glibc that is too old.
        from ipykernel import kernelapp  # noqa: F401, PLC0415 - after sys.path is complete
    except UnusableError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - an image's packages may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_PROBLEM]
        problem = f"The image's Python {_VERSION} can't start a kernel: {reason}"
    if is_checked:
        sys.stdout.write(json.dumps({"version": _VERSION, "problem": problem}) + "\n")
        return 0
    if problem:
        _log(problem)
        return 1
    # An argument, so that extensions of the user's own configuration are loaded as well.
    more = [_LOAD_WIDGETS] if _GIPFEL_PATH in sys.path else []
    runpy.run_path(str(_KERNELS / "kernel_launch.py"))["launch"]([*arguments, *more])
    return 0


def prepare() -> list[str]:
    """Add the directories for this version to the end of ``sys.path``; return the lines to log about it.

    Raises
    ------
    UnusableError
        Neither the image nor the runtime has an ipykernel for this Python.
    """
    folder = _matching_directory()
    reason = _incompatibility(folder)
    if folder is None or reason:
        if importlib.util.find_spec("ipykernel") is None:
            raise UnusableError(reason)
        return [f"{reason} The image's own ipykernel is used."]
    own = _GIPFEL_PATH if sys.version_info >= _WIDGETS_FROM else str(_KERNELS / "older")
    sys.path_hooks.insert(0, _byte_code_hook(_KERNELS))
    sys.path += [str(folder), own]
    return _replace_outdated(folder)


def _log(line: str) -> None:
    # Goes to the server's log, since no notebook is connected yet.
    sys.stderr.write(f"gipfel: {line}\n")
    sys.stderr.flush()


def _matching_directory() -> Path | None:
    # The packages of the runtime's own interpreter fit other interpreters of the same version.
    own = _KERNELS.parent / "lib" / f"python{_VERSION}" / "site-packages"
    folders = (_KERNELS / f"cp{_VERSION.replace('.', '')}", own)
    return next((folder for folder in folders if folder.is_dir()), None)


def _incompatibility(folder: Path | None) -> str:
    """Return why this Python can't use the directory; empty if it can."""
    if sys.implementation.name != "cpython":
        return f"The image's Python is {sys.implementation.name}; the runtime has kernels for CPython only."
    built = f"{sysconfig.get_config_var('SOABI')} {sysconfig.get_config_var('HOST_GNU_TYPE')}"
    if "musl" in built:
        return f"The image's Python {_VERSION} uses musl; the runtime has kernels for glibc only."
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            f"The image's Python {_VERSION} is free-threaded; the runtime has kernels for the default build "
            "only."
        )
    if folder is None:
        return f"The runtime has no kernel for the image's Python {_VERSION}; {_how_to_add()}"
    has, needs = _glibc(), tuple(_description(folder).get("glibc", ()))
    if has < needs:
        versions = (".".join(str(part) for part in version) for version in (has, needs))
        return "The image's glibc {} is older than {}, which the runtime's kernels need.".format(*versions)
    return ""


def _how_to_add() -> str:
    first, last = SUPPORTED
    if not first <= sys.version_info[:2] <= last:
        return "there are kernels for {}.{} to {}.{}.".format(*first, *last)
    return f"`gipfel runtime build {_root()}` on the host adds it."


def _root() -> str:
    """Return the runtime's path on the host, which for a file differs from the mount point."""
    try:
        record = json.loads(Path(os.environ["GIPFEL_RUN"], "record.json").read_bytes())
        runtime = record["runtime"]
        if runtime["prefix"] == str(_KERNELS.parent):
            return str(runtime["root"])
    except (KeyError, OSError, TypeError, ValueError):
        pass
    return str(_KERNELS.parent)


def _glibc() -> tuple[int, ...]:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
        return tuple(int(part) for part in text.split()[1].split(".")[:2])
    except (IndexError, OSError, ValueError):
        return (0, 0)


def _description(folder: Path) -> dict[str, Any]:
    """Return the description of a directory; empty for the packages of the runtime's interpreter."""
    try:
        content: dict[str, Any] = json.loads((folder / "folder.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content


def _replace_outdated(folder: Path) -> list[str]:
    """Use the directory's packages in place of those that are too old for the kernel; return a line for each.

    Only requirements of ipykernel are checked, beginning with the ipykernel that is found: an image with a
    complete ipykernel is not changed.
    """
    modules_before = set(sys.modules)
    from packaging.requirements import Requirement  # noqa: PLC0415 - the image's, or the directory's

    available = {_normal(each.metadata["Name"]): each for each in metadata.distributions(path=[str(folder)])}
    replacements: dict[str, metadata.Distribution] = {}
    lines: list[str] = []
    seen: set[str] = set()
    todo = ["ipykernel"]
    while todo:
        requirement = Requirement(todo.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = _normal(requirement.name)
        found = replacements.get(name) or _found(name)
        is_recent_enough = found is not None and requirement.specifier.contains(
            found.version, prereleases=True
        )
        if not is_recent_enough and name in available and name not in replacements:
            if found is not None:
                problem = f"{name} {found.version} is too old for a kernel ({requirement.specifier})"
                lines.append(f"The image's {problem}: the runtime's {available[name].version} is used.")
            found = replacements[name] = available[name]
            seen.discard(name)
        if found is not None and name not in seen:
            seen.add(name)
            todo += found.requires or []
    _forget("packaging", set(sys.modules) - modules_before)
    modules = {_normal(name): names for name, names in _description(folder).get("modules", {}).items()}
    names = {module for name in replacements for module in modules.get(name, [name.replace("-", "_")])}
    if names:
        sys.meta_path.insert(0, _Preferred(folder, names))
    return lines


def _forget(package: str, among: Iterable[str]) -> None:
    # These modules were imported before it was known which version must be used.
    for name in [each for each in among if each.partition(".")[0] == package]:
        del sys.modules[name]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _found(name: str) -> metadata.Distribution | None:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    # A leftover directory without metadata has no version.
    return found if found.metadata["Version"] else None


class _Preferred:
    """A finder that searches one directory for some modules, before all others."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = str(folder)
        self._names = frozenset(names)

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None or name not in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._folder], target)


class _CachedLoader(importlib.machinery.SourceFileLoader):
    """A loader that stores the byte code of modules in a read-only directory in the user's cache."""

    def get_code(self, fullname: str) -> CodeType | None:
        before = sys.pycache_prefix
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        sys.pycache_prefix = before or str(Path(cache, "gipfel", "pycache"))
        try:
            return super().get_code(fullname)
        finally:
            sys.pycache_prefix = before


def _byte_code_hook(folder: Path) -> Callable[[str], Any]:
    inner = importlib.machinery.FileFinder.path_hook(
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_CachedLoader, importlib.machinery.SOURCE_SUFFIXES),
    )
    top = f"{folder}{os.sep}"

    def hook(path: str) -> Any:
        if not path.startswith(top):
            raise ImportError(path)
        return inner(path)

    return hook


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
