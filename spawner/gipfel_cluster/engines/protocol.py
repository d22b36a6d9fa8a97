"""Interface of an engine: it renders a `ContainerRequest` as an `Invocation`.

The functions below check values, apply protected variables, and write notes about variables of an EDF.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from pydantic import Field

from ..edf.model import Edf, Mount
from ..environment import PATH_VARIABLES
from ..model import Frozen, GipfelError, printable


class ContainerRequest(Frozen):
    """A command to run in the container of an EDF."""

    edf: Edf
    command: tuple[str, ...]
    #: Mounts in addition to the EDF's: runtime, run folder, working directory, sockets.
    mounts: tuple[Mount, ...] = ()
    #: The host's variables that the container inherits; see `gipfel_cluster.environment.compose`.
    environment: dict[str, str] = Field(default_factory=dict)
    #: Names of variables, or prefixes ending in ``*``, that neither image nor EDF may change.
    protected: tuple[str, ...] = ()
    #: Working directory in the container, which overrides the EDF's; empty for the EDF's.
    workdir: str = ""
    #: A private directory (0700) on local disk with a short path; the caller creates and removes it.
    scratch: str
    #: Options of srun about tasks and nodes, for the engines that start the command with srun.
    step: tuple[str, ...] = ()
    #: Render for display only, perhaps not on the machine that would run it: a missing program or file is
    #: a note, and nothing is created on disk.
    render_only: bool = False


class Invocation(Frozen):
    """A process to execute; ``environment`` is its complete environment, not an addition."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    #: The parts of the EDF that this engine does not support, one sentence each.
    notes: tuple[str, ...] = ()


class Engine(Protocol):
    """Renders requests as processes."""

    name: str

    def unavailable_reason(self) -> str | None:
        """Return in one line why this machine can't run the engine; None if it can."""

    def render(self, request: ContainerRequest, *, python: str | Sequence[str]) -> Invocation:
        """Render a request as a process to execute.

        Parameters
        ----------
        python
            A Python of the host, 3.11 or newer, as a path or an argv prefix.

        Raises
        ------
        GipfelError
            The engine can't run this EDF on this machine.
        """


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_values(request: ContainerRequest) -> None:
    """Check that a request has a command and that all values fit into a command line.

    Raises
    ------
    GipfelError
        There is no command, or a value of the EDF or a path has a newline or NUL.
    """
    if not request.command:
        raise GipfelError("There is no command to run.", "Give a command.")
    if any("\0" in word for word in request.command):
        raise GipfelError("The command has a NUL character.", "Remove it.")
    edf = request.edf
    paths = [path for mount in (*edf.mounts, *request.mounts) for path in (mount.source, mount.destination)]
    for key, values in (
        ("image", [edf.image]),
        ("workdir", [edf.workdir, request.workdir]),
        ("mounts", paths),
        ("env", [*edf.env, *edf.env.values()]),
        ("annotations", [*edf.annotations, *edf.annotations.values()]),
        ("devices", edf.devices),
    ):
        if any("\n" in value or "\0" in value for value in values):
            raise GipfelError(
                f"A value of {key} has a newline or a NUL character, which no engine supports.",
                "Remove it.",
            )


def protected_names(request: ContainerRequest) -> tuple[str, ...]:
    """List the variables of the request that neither image nor EDF may change."""
    return tuple(name for name in request.environment if is_protected(name, request.protected))


def is_protected(name: str, protected: Iterable[str]) -> bool:
    """Return whether a variable is one of the names, or begins with one of the prefixes ending in ``*``."""
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in protected)


def _protected_edf_variables(request: ContainerRequest) -> tuple[list[str], list[str]]:
    """Return the EDF's variables that are not set: those with reserved prefixes, and the job's own."""
    prefixes = [each for each in request.protected if each.endswith("*")]
    reserved = sorted(name for name in request.edf.env if is_protected(name, prefixes))
    job_variables = {name for name in request.environment if is_protected(name, request.protected)}
    return reserved, sorted(job_variables & request.edf.env.keys() - set(reserved))


def edf_variables(request: ContainerRequest) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that the EDF sets and the names that it unsets, without protected ones."""
    reserved, job_variables = _protected_edf_variables(request)
    variables = {
        name: value
        for name, value in request.edf.env.items()
        if name not in reserved and name not in job_variables
    }
    return {name: value for name, value in variables.items() if value}, tuple(
        name for name, value in variables.items() if not value
    )


def protected_variable_notes(request: ContainerRequest) -> tuple[str, ...]:
    """Return notes about the EDF's variables that are not set because the job protects them."""
    reserved, job_variables = _protected_edf_variables(request)
    reasons = {
        "Not set, because these names are reserved for the hub and the scheduler": reserved,
        "Not set by the EDF, because the job's own value is used": job_variables,
    }
    return tuple(f"{reason}: {', '.join(names)}." for reason, names in reasons.items() if names)


def host_value_notes(request: ContainerRequest) -> tuple[str, ...]:
    """Return notes about path variables that the EDF extends with ``${NAME}`` and that got the host's value.

    The host can't read the variables of an image in a registry, so ``${PATH}`` is the host's.
    """
    edf = request.edf
    if not edf.image or edf.image_path:
        return ()
    names = [
        name
        for name, value in edf.env.items()
        if (name in PATH_VARIABLES or name.startswith("LD_"))
        and (job_value := request.environment.get(name))
        and f":{job_value}:" in f":{value}:"
    ]
    return tuple(
        f"The image is in a registry, so its {name} can't be read here, and the EDF's ${{{name}}} is this "
        f"host's: write the image's {name} in full, or import the image into a .sqsh file."
        for name in names
    )


def flag_notes(request: ContainerRequest, engine: str, supported: Collection[str]) -> list[str]:
    """Return notes about flags of mounts that an engine ignores."""
    return [
        f"The flag {flag!r} of the mount {mount} has no effect in the engine {engine}."
        for mount in (*request.edf.mounts, *request.mounts)
        for flag in mount.flags
        if flag not in supported
    ]


def valid_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are valid identifiers, so that a list separated by commas can hold them."""
    return tuple(name for name in names if _NAME.fullmatch(name))


def non_utf8_names(values: Mapping[str, str]) -> tuple[str, ...]:
    """List the variables whose bytes are not UTF-8, which JSON can't hold."""
    return tuple(name for name, value in values.items() if printable(name + value) != name + value)
