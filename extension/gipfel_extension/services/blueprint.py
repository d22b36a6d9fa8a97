"""Blueprint of a service: its parts, parameters, paths, readiness and resources, as frozen models.

Texts in ``command`` and ``variables`` may contain references: ``${parameters.NAME}``, ``${socket}`` (this
part's socket) or ``${port}`` (for a part that can listen only on TCP), ``${parts.NAME.socket}`` (another
part's) or ``${parts.NAME.port}`` (its port, between two parts that can listen only on TCP), ``${prefix}``
(the URL's path, ending with a slash) or ``${path}`` (without it), ``${storage}`` (a directory that is kept),
``${secrets.NAME}`` (a file), ``${python}`` and ``${environment}`` (the directory of the blueprint's own
packages). Where a part has ``workers``, ``${nodes.count}``, ``${nodes.rank}`` (of this node, from 0),
``${nodes.first}`` (the address of the first) and ``${nodes.port}`` (a port that was free there). ``$$`` is a
dollar sign. Nothing is passed to a shell.

Blueprints are found in ``~/.gipfel/blueprints``, in the site's directories in ``$GIPFEL_BLUEPRINTS``, in
the directories of packages, and in Gipfel's ``catalogue/``, in this order. A package names a module whose
directory has blueprints, as an entry point of the group ``gipfel.blueprints``.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator, model_validator

from gipfel_cluster.definition_files import (
    SUFFIXES,
    DefinitionFile,
    FileDiagnostic,
    definition_directories,
    definition_paths,
    suggestion,
)
from gipfel_cluster.model import Frozen, GipfelError, OneLine, check_command, check_variables
from gipfel_cluster.scheduler.protocol import Memory, Name, TimeLimit
from gipfel_cluster.storage_classes import ClassName

from .references import cross_problems

#: A name as JupyterHub allows it for servers: 1 to 30 of a-z, 0-9 and single dashes.
NAME = r"[a-z0-9](?:-?[a-z0-9]){0,29}"
#: Value of a parameter; strict, so that 1 stays an int.
ParameterValue = StrictBool | StrictInt | StrictFloat | StrictStr

_DIRECTORIES = "GIPFEL_BLUEPRINTS"
_SHIPPED = Path(__file__).parent / "catalogue"
_MAX_COMMAND_BYTES = 64 << 10
_Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
_PartName = Annotated[str, Field(pattern=rf"^{NAME}$")]
_Host = Annotated[str, Field(pattern=r"^(?:\*\.)?[A-Za-z0-9][A-Za-z0-9.-]{0,252}(?::[0-9]{1,5})?$")]
# Printable ASCII without encoding: an allowed path is compared with the decoded path of a request.
_AllowedPath = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._~!&'()*+,=:@/-]{0,255}$")]
_Requirement = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[a-z0-9,_-]+\])?==[A-Za-z0-9.+!]+$")
]
_NpmPackage = Annotated[str, Field(pattern=r"^(?:@[a-z0-9._-]+/)?[a-z0-9][a-z0-9._-]*@[0-9][A-Za-z0-9.+-]*$")]
_RelativePath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*$", max_length=200)]
_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}


class Parameter(Frozen):
    """A parameter of a blueprint; without ``default`` the user must give a value."""

    type: Literal["bool", "int", "float", "str"] = "str"
    default: ParameterValue | None = Field(None, union_mode="left_to_right")
    help: OneLine = Field("", max_length=300)
    choices: tuple[str, ...] = Field((), max_length=64)

    @model_validator(mode="after")
    def _default_has_type(self) -> "Parameter":
        if self.default is not None and not has_type(self.default, self.type):
            raise ValueError(f"the default is not of type {self.type}")
        if self.choices and self.type != "str":
            raise ValueError("only a parameter of type str has choices")
        if self.choices and self.default is not None and self.default not in self.choices:
            raise ValueError("the default is not one of the choices")
        return self


class Ready(Frozen):
    """The request that a part must answer before it counts as ready.

    ``path`` is a path of the service itself, without the prefix. ``status`` are the accepted status codes; by
    default all from 200 to 399. ``timeout_s`` are the seconds after its start within which it must be ready.
    A program that does not speak HTTP is ready when it ``accepts`` connections.
    """

    accepts: Literal["http", "connections"] = "http"
    path: Annotated[str, Field(pattern=r"^/[\x21-\x7e]{0,500}$")] = "/"
    status: tuple[Annotated[int, Field(ge=100, le=599)], ...] = Field((), max_length=16)
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0


class Part(Frozen):
    """A program of a service, which listens on a Unix socket, or on ``${port}`` in a network of its own.

    A part that listens on a ``port`` can reach other parts by their sockets, and no other machine.
    ``path`` says whether the service gets paths without the URL's prefix (``strip``) or with it (``keep``);
    a program that works only at the root of a host name needs a ``host`` of its own, which a hub with
    subdomains gives it. A program that does not speak HTTP is ``raw``: `gipfel service connect` gives its
    users a socket, with the file name ``socket_name``.
    ``allow_paths`` are the paths that may be requested, without the prefix: an entry that ends with a slash
    allows all paths below it, any other only itself; an empty list allows all.
    ``workers`` is the command on each further node of a job of several nodes; the service ends when one of
    them ends.
    """

    command: tuple[OneLine, ...] = Field(min_length=1, max_length=256)
    variables: dict[_Identifier, OneLine] = Field(default={}, max_length=128)
    workers: tuple[OneLine, ...] = Field((), max_length=256)
    secrets: tuple[_PartName, ...] = Field((), max_length=16)
    listen: Literal["socket", "port"] = "socket"
    path: Literal["strip", "keep", "host", "raw"] = "strip"
    socket_name: Annotated[str, Field(pattern=r"^\.?[A-Za-z0-9][A-Za-z0-9._-]{0,30}$")] = "service"
    allow_paths: tuple[_AllowedPath, ...] = Field((), max_length=64)
    ready: Ready = Ready()
    needs: tuple[_PartName, ...] = Field((), max_length=8)

    @field_validator("command", "workers")
    @classmethod
    def _check_command(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            check_command(value, _MAX_COMMAND_BYTES)
        return value

    @field_validator("variables")
    @classmethod
    def _check_variables(cls, value: dict[str, str]) -> dict[str, str]:
        check_variables(value, "GIPFEL_")
        for name in value:
            if any(word in name.upper() for word in ("TOKEN", "PASSWORD", "SECRET")):
                raise ValueError(f"{name} is named like a secret: list it below 'secrets', which are files")
        return value

    @field_validator("allow_paths")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if any(segment in {"", ".", ".."} for segment in path[1:].rstrip("/").split("/") if path != "/"):
                raise ValueError(f"{path} has an empty segment or a dot segment")
        return value

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield all texts that may contain references, each with its path in the document."""
        for number, word in enumerate(self.command):
            yield ("command", number), word
        for number, word in enumerate(self.workers):
            yield ("workers", number), word
        for name, text in self.variables.items():
            yield ("variables", name), text


class Resources(Frozen):
    """Resources of the service's job, on each of its nodes; empty or 0 for the cluster's default."""

    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    cpus: Annotated[int, Field(ge=0, le=1024)] = 0
    memory: Memory = ""
    time: TimeLimit = ""
    partition: Name = ""


class Environment(Frozen):
    """Packages of a service, installed at the first start into a directory for this blueprint alone.

    ``pip`` are requirements with versions, ``npm`` an npm package with its version, installed without its
    install scripts; ``npm_in`` are directories of that package in which npm then also installs dependencies.
    Parts whose command begins with ``${python}`` find the pip packages through ``PYTHONPATH``.
    """

    pip: tuple[_Requirement, ...] = Field((), max_length=64)
    npm: _NpmPackage | None = None
    npm_in: tuple[_RelativePath, ...] = Field((), max_length=8)


class Measured(Frozen):
    """Memory of the running service, and seconds from its start until it is ready, as measured once."""

    memory: Memory = ""
    start_s: Annotated[float, Field(ge=0, le=3600)] = 0.0


class Blueprint(Frozen):
    """A service that users can start: its parts run in one job, in the container of one EDF.

    ``front`` names the part that the front door shows; a blueprint with one part may leave it out.
    ``outbound`` lists the hosts outside of the cluster that the service contacts. With ``gate``, a proxy lets
    its parts reach only these hosts, and no host at all if they listen on a port. ``storage`` is the storage
    class of ``${storage}``; without one, ``${storage}`` is in the service's own directory. The service ends
    after ``idle_s`` seconds without a request; 0 means never. With ``keep_up`` a hub starts it again, at the
    same URL, after a job that was killed, failed or reached its time limit. With ``handover: overlap`` the
    next job is submitted ``overlap_s`` seconds before the time limit, at the earliest after a quarter of the
    time, and the URL leads to it as soon as it is ready.
    """

    name: Annotated[str, Field(pattern=rf"^{NAME}$")]
    title: OneLine = Field(min_length=1, max_length=100)
    about: OneLine = Field("", max_length=1000)
    version: OneLine = Field("", max_length=64)
    license: OneLine = Field("", max_length=100)
    parameters: dict[_Identifier, Parameter] = Field(default={}, max_length=64)
    edf: OneLine = Field("", max_length=4096)
    environment: Environment = Environment()
    measured: Measured = Measured()
    storage: ClassName | None = None
    idle_s: Annotated[int, Field(ge=0, le=10**7)] = 0
    keep_up: bool = False
    handover: Literal["stop-first", "overlap"] = "stop-first"
    overlap_s: Annotated[int, Field(ge=30, le=86400)] = 600
    parts: dict[_PartName, Part] = Field(min_length=1, max_length=8)
    front: str = ""
    resources: Resources = Resources()
    outbound: tuple[_Host, ...] = Field((), max_length=64)
    gate: bool = False

    @property
    def has_pages(self) -> bool:
        """Return whether browsers show what the front part answers."""
        return self.parts[self.front_part].path != "raw"

    @property
    def front_part(self) -> str:
        """Return the name of the part that the front door shows."""
        return self.front or next(iter(self.parts))

    def start_order(self) -> tuple[str, ...]:
        """Return the names of all parts, each after those that it needs.

        Raises
        ------
        ValueError
            Parts need each other in a cycle.
        """
        order: list[str] = []
        waiting = dict(self.parts)
        while waiting:
            free = [name for name, part in waiting.items() if set(part.needs) <= set(order)]
            if not free:
                raise ValueError(f"the parts {', '.join(sorted(waiting))} need each other in a circle")
            order += free
            waiting = {name: part for name, part in waiting.items() if name not in free}
        return tuple(order)


def has_type(value: object, type_: str) -> bool:
    """Return whether a value has the type of a parameter; a bool is not a number, nor is infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES[type_]) and (isinstance(value, bool) == (type_ == "bool"))


_FILE = DefinitionFile(Blueprint, "blueprint", "Write 'name', 'title' and 'parts'.", cross_problems)


def read_blueprint(path: Path) -> Blueprint:
    """Return the blueprint of a file.

    Raises
    ------
    GipfelError
        The file can't be read or has a mistake; the message is about the first one.
    """
    return _FILE.read(path)


def check_blueprint(path: Path) -> tuple[Blueprint | None, tuple[FileDiagnostic, ...]]:
    """Return a file's blueprint, or None and its mistakes, at most 20, in the order of their lines."""
    return _FILE.check(path)


def blueprint_schema() -> dict[str, Any]:
    """Return the JSON Schema of blueprints, for editors."""
    return _FILE.json_schema("Blueprint of gipfel service")


def known_blueprints(
    environment: Mapping[str, str],
) -> tuple[dict[str, tuple[str, Blueprint]], tuple[FileDiagnostic, ...]]:
    """Return all blueprints by name, each with its origin, and the mistakes in files that can't be used."""
    found: dict[str, tuple[str, Blueprint]] = {}
    problems: list[FileDiagnostic] = []
    for origin, directory in definition_directories("blueprints", _DIRECTORIES, _SHIPPED, environment):
        for path in definition_paths(directory):
            blueprint, diagnostics = check_blueprint(path)
            problems += diagnostics
            if blueprint is not None:
                found.setdefault(blueprint.name, (origin, blueprint))
    return found, tuple(problems)


def find_blueprint(name: str, *, directory: Path, environment: Mapping[str, str]) -> Blueprint:
    """Return the blueprint of a file's path, which has a slash or a suffix, or of a name.

    Raises
    ------
    GipfelError
        There is none, or it has a mistake.
    """
    if "\0" in name or len(name) > 4096:
        raise GipfelError("The name of the blueprint is not valid.", "See `gipfel service blueprints`.")
    if "/" in name or name.endswith(SUFFIXES):
        return read_blueprint(Path(directory, Path(name).expanduser()))
    known, problems = known_blueprints(environment)
    if name in known:
        return known[name][1]
    broken = next((each for each in problems if Path(each.file).stem == name), None)
    if broken is not None:
        raise GipfelError(str(broken), broken.fix)
    fix = suggestion(name, known) or "See `gipfel service blueprints`."
    raise GipfelError(f"There is no blueprint {name[:80]!r}.", fix)
