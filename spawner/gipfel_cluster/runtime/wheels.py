"""Wheels for another CPython than this one: which, and unpacked into a folder, by pip."""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model import GipfelError, one_line

#: The oldest glibc of an image that wheels are taken for: that of RHEL 8 and Debian 10.
GLIBC = (2, 28)
_SECONDS = 900
_ROUNDS = 6


def resolve_wheels(python: str, requirements: Iterable[str]) -> dict[str, str]:
    """Ask the package index which distributions a CPython needs: name -> version.

    Parameters
    ----------
    python
        Such as ``3.9``.

    Raises
    ------
    GipfelError
        There is no pip here, no index in reach, or no set of wheels for this version.
    """
    wanted = list(requirements)
    for _ in range(_ROUNDS):
        found = _report(python, wanted)
        needed, missing = _closure(found, requirements, python)
        if not missing:
            return {name: found[name]["version"] for name in sorted(needed)}
        wanted += sorted(missing)
    raise GipfelError(f"The packages for Python {python} need ever more: {', '.join(sorted(missing))}.")


def install_wheels(python: str, versions: Mapping[str, str], target: Path) -> None:
    """Unpack exactly these distributions into a folder, without byte code.

    Raises
    ------
    GipfelError
        As of `resolve_wheels`.
    """
    exact = [f"{name}=={version}" for name, version in versions.items()]
    _pip(python, ["--no-deps", "--no-compile", "--target", str(target), *exact])


def _report(python: str, requirements: Sequence[str]) -> dict[str, dict[str, Any]]:
    from packaging.utils import canonicalize_name  # noqa: PLC0415 - only where runtimes are built

    with tempfile.TemporaryDirectory(prefix="gipfel-wheels-") as folder:
        report = Path(folder, "report.json")
        _pip(python, ["--dry-run", "--report", str(report), "--target", f"{folder}/none", *requirements])
        installs = json.loads(report.read_text())["install"]
    return {canonicalize_name(each["metadata"]["name"]): each["metadata"] for each in installs}


def _closure(
    found: Mapping[str, Mapping[str, Any]], requirements: Iterable[str], python: str
) -> tuple[set[str], set[str]]:
    """Which of the distributions a Python needs, and which requirements pip has overlooked.

    For another version pip chooses the right wheels but reads markers as if this Python were asking.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415 - as above
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    markers = {"python_version": python, "python_full_version": f"{python}.0"}
    needed: set[tuple[str, str]] = set()
    missing: set[str] = set()
    todo = [(text, "") for text in requirements]
    while todo:
        text, of_extra = todo.pop()
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({**markers, "extra": of_extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            requirement.marker = None
            missing.add(str(requirement))
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in needed:
                needed.add((name, extra))
                todo += [(each, extra) for each in found[name].get("requires_dist", ())]
    return {name for name, _ in needed}, missing


def _pip(python: str, arguments: Sequence[str]) -> None:
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--retries", "1", "--ignore-installed", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python, *_platforms()]
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GipfelError(f"pip does not run: {error}.") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise GipfelError(f"pip: {one_line((lines or ['it failed'])[-1])}")


def _platforms() -> list[str]:
    machine = platform.machine()
    major, newest = GLIBC
    tags = [f"manylinux_{major}_{minor}_{machine}" for minor in range(newest, 4, -1)]
    tags += [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [word for tag in tags for word in ("--platform", tag)]
