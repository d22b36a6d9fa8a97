"""A service to start: a blueprint with the values of its parameters, and its directory.

The directory is ``~/.gipfel/services/NAME``, accessible to its owner alone. ``spec.json`` is a `ServiceSpec`,
``token`` the front door's token, ``storage`` the files that the service keeps, ``secrets`` copies of the
secrets that it may read.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from gipfel_cluster.edf.gate import Gate, gates_of
from gipfel_cluster.egress.start import VARIABLES, gate_invocation
from gipfel_cluster.engines import Invocation
from gipfel_cluster.model import BREAKS, Frozen, GipfelError
from gipfel_cluster.regular_files import read_secret
from gipfel_cluster.runs import write_atomically
from gipfel_cluster.yaml_document import suggestion

from .blueprint import NAME, REFERENCE, Blueprint, Parameter, ParameterValue, Part, has_type

SERVICES, TOKEN, STORAGE, SECRETS = "services", "token", "storage", "secrets"
#: Scheduler of a service that a hub starts and ends.
HUB = "hub"
_MAX_TEXT = 4096
_BOOLS = {"true": True, "false": False}


class ServiceSpec(Frozen):
    """Content of ``spec.json``: enough to start the same service again.

    ``parameters`` are the values that the user gave; ``prefix`` is the path of its URL.
    """

    name: str = Field(pattern=rf"^{NAME}$")
    blueprint: Blueprint
    parameters: dict[str, ParameterValue] = Field(default={}, max_length=64)
    prefix: str = Field("/", pattern=r"^/(?:[A-Za-z0-9._~@%-]+/)*$", max_length=500)
    scheduler: str = ""
    account: str = ""
    edf: str = ""
    engine: str = ""
    directory: str = ""
    """Working directory of the service's programs."""
    source: str = ""
    """Name that the user gave: a blueprint's name or file."""


def service_directory(name: str, environment: Mapping[str, str]) -> Path:
    """Return the directory of a service; `name` is not checked."""
    return Path(environment.get("HOME") or Path.home()) / ".gipfel" / SERVICES / name


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


def resolve_part(part: Part, references: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the argv and the variables of a part with all references replaced.

    A reference is replaced once: a value that contains ``${…}`` is not expanded again.
    """

    def resolved(text: str) -> str:
        return REFERENCE.sub(lambda match: "$" if match[1] is None else references[match[1]], text)

    return tuple(map(resolved, part.command)), {name: resolved(text) for name, text in part.variables.items()}


def gated_part(
    blueprint: Blueprint, argv: tuple[str, ...], environment: Mapping[str, str], folder: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return argv and variables of a part behind the gates of blueprint, EDF and site, if there are any.

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


def copy_secrets(spec: ServiceSpec, folder: Path, environment: Mapping[str, str]) -> None:
    """Copy the blueprint's secrets from ``~/.gipfel/secrets`` into the service's directory (0600).

    Raises
    ------
    GipfelError
        A secret is missing, or other users can read it.
    """
    source = Path(environment.get("HOME") or Path.home()) / ".gipfel" / SECRETS
    for name in sorted({each for part in spec.blueprint.parts.values() for each in part.secrets}):
        content = read_secret(source / name)
        (folder / SECRETS).mkdir(mode=0o700, exist_ok=True)
        write_atomically(folder / SECRETS / name, content)


def remove_secrets(folder: Path) -> None:
    """Remove the copies of the secrets."""
    shutil.rmtree(folder / SECRETS, ignore_errors=True)


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
