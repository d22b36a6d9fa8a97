"""Start an image's own Python as a kernel: ``python3 <runtime>/kernels/start.py -f CONNECTION_FILE``.

The image's packages win: what it lacks is found in the runtime's directory for its version of CPython, at the
end of ``sys.path``. This runs with any CPython since 3.9, and imports the standard library only.
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

_LONGEST = 300
_HERE = Path(__file__).resolve().parent
_VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
_WIDGETS_FROM = (3, 11)
#: Where a kernel that can use `gipfel_widgets` finds it, and how it loads ``%%launch`` from there.
_GIPFEL_PATH = str(_HERE / "gipfel")
_LOAD_WIDGETS = "--InteractiveShellApp.extra_extensions=gipfel_widgets"
#: The first and the last version of CPython that a runtime can have a directory for.
SERVED = ((3, 9), (3, 14))


class UnusableError(Exception):
    """The image's Python can't be a kernel; the message is one line."""


def main(arguments: list[str]) -> int:
    """Complete ``sys.path`` and become ipykernel; return only where that can't be, or to ``--check`` it."""
    # A script's directory comes first on the path; ipykernel puts the notebook's there.
    sys.path[:] = [path for path in sys.path if not path or Path(path).resolve() != _HERE]
    is_checked = arguments == ["--check"]
    problem = ""
    try:
        for line in prepare():
            _say(line)
        # Also where it is only asked: a library that the image lacks, or a glibc too old, is seen here alone.
        from ipykernel import kernelapp  # noqa: F401, PLC0415 - found where the path says by now
    except UnusableError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever the packages of an image raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
        problem = f"The image's Python {_VERSION} can't start a kernel: {why}"
    if is_checked:
        sys.stdout.write(json.dumps({"version": _VERSION, "problem": problem}) + "\n")
        return 0
    if problem:
        _say(problem)
        return 1
    # Appended to the arguments: what the user's own configuration loads is loaded as well.
    more = [_LOAD_WIDGETS] if _GIPFEL_PATH in sys.path else []
    runpy.run_path(str(_HERE / "kernel_launch.py"))["launch"]([*arguments, *more])
    return 0


def prepare() -> list[str]:
    """Add the directories for this version to the end of ``sys.path``; return the lines to log about it.

    Raises
    ------
    UnusableError
        Neither the image nor the runtime has a kernel for this Python.
    """
    folder = _matching_folder()
    reason = _why_not(folder)
    if folder is None or reason:
        if importlib.util.find_spec("ipykernel") is None:
            raise UnusableError(reason)
        return [f"{reason} The image's own ipykernel is used."]
    own = _GIPFEL_PATH if sys.version_info >= _WIDGETS_FROM else str(_HERE / "older")
    sys.path_hooks.insert(0, _byte_code_hook(_HERE))
    sys.path += [str(folder), own]
    return _pass_over(folder)


def _say(line: str) -> None:
    # Into the server's log: there is no notebook yet.
    sys.stderr.write(f"gipfel: {line}\n")
    sys.stderr.flush()


def _matching_folder() -> Path | None:
    # What the runtime's own interpreter has serves another of its version as well.
    own = _HERE.parent / "lib" / f"python{_VERSION}" / "site-packages"
    folders = (_HERE / f"cp{_VERSION.replace('.', '')}", own)
    return next((folder for folder in folders if folder.is_dir()), None)


def _why_not(folder: Path | None) -> str:
    """Return why the directory can't serve this Python; empty where it can."""
    if sys.implementation.name != "cpython":
        return f"The image's Python is {sys.implementation.name}; the runtime has kernels for CPython only."
    built = f"{sysconfig.get_config_var('SOABI')} {sysconfig.get_config_var('HOST_GNU_TYPE')}"
    if "musl" in built:
        return f"The image's Python {_VERSION} uses musl; the runtime has kernels for glibc only."
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            f"The image's Python {_VERSION} is free-threaded; the runtime has kernels for the usual one only."
        )
    if folder is None:
        return f"The runtime has no kernel for the image's Python {_VERSION}; {_how_to_add()}"
    has, needs = _glibc(), tuple(_described(folder).get("glibc", ()))
    if has < needs:
        words = (".".join(str(part) for part in version) for version in (has, needs))
        return "The image's glibc {} is older than {}, which the runtime's kernels need.".format(*words)
    return ""


def _how_to_add() -> str:
    first, last = SERVED
    if not first <= sys.version_info[:2] <= last:
        return "there are kernels for {}.{} to {}.{}.".format(*first, *last)
    return f"`gipfel runtime build {_root()}` on the host adds it."


def _root() -> str:
    """Return the runtime's path on the host, which for a file is not where it is mounted."""
    try:
        record = json.loads(Path(os.environ["GIPFEL_RUN"], "record.json").read_bytes())
        runtime = record["runtime"]
        if runtime["prefix"] == str(_HERE.parent):
            return str(runtime["root"])
    except (KeyError, OSError, TypeError, ValueError):
        pass
    return str(_HERE.parent)


def _glibc() -> tuple[int, ...]:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
        return tuple(int(part) for part in text.split()[1].split(".")[:2])
    except (IndexError, OSError, ValueError):
        return (0, 0)


def _described(folder: Path) -> dict[str, Any]:
    """Return the description of a directory; the packages of the runtime's interpreter have none."""
    try:
        content: dict[str, Any] = json.loads((folder / "folder.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content


def _pass_over(folder: Path) -> list[str]:
    """Take the directory's own where a package of the image is too old for the kernel; return a line each.

    Only what ipykernel needs is looked at, starting from the ipykernel that is found: an image with a whole
    one of its own is left alone.
    """
    before = set(sys.modules)
    from packaging.requirements import Requirement  # noqa: PLC0415 - the image's, or the directory's

    ours = {_normal(each.metadata["Name"]): each for each in metadata.distributions(path=[str(folder)])}
    taken: dict[str, metadata.Distribution] = {}
    said: list[str] = []
    seen: set[str] = set()
    todo = ["ipykernel"]
    while todo:
        requirement = Requirement(todo.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = _normal(requirement.name)
        found = taken.get(name) or _found(name)
        enough = found is not None and requirement.specifier.contains(found.version, prereleases=True)
        if not enough and name in ours and name not in taken:
            if found is not None:
                what = f"{name} {found.version} is too old for a kernel ({requirement.specifier})"
                said.append(f"The image's {what}: the runtime's {ours[name].version} is used.")
            found = taken[name] = ours[name]
            seen.discard(name)
        if found is not None and name not in seen:
            seen.add(name)
            todo += found.requires or []
    _forget("packaging", set(sys.modules) - before)
    modules = {_normal(name): names for name, names in _described(folder).get("modules", {}).items()}
    names = {module for name in taken for module in modules.get(name, [name.replace("-", "_")])}
    if names:
        sys.meta_path.insert(0, _Preferred(folder, names))
    return said


def _forget(package: str, among: Iterable[str]) -> None:
    # What was imported before it was known which one is to be used.
    for name in [each for each in among if each.partition(".")[0] == package]:
        del sys.modules[name]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _found(name: str) -> metadata.Distribution | None:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    # A directory of which only the name is left has no version.
    return found if found.metadata["Version"] else None


class _Preferred:
    """Finds some modules in one directory before they are looked for anywhere else."""

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
    """Keeps byte code of a directory that is read-only in the user's cache."""

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
