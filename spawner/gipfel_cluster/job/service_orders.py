"""Services as the hub and its users' jobs exchange them, as JSON.

The hub does not read users' files. It runs ``python -m gipfel_extension.services.hub_commands`` as the user,
which finds blueprints and writes the directory of a service.
"""

from typing import Annotated

from pydantic import Field

from ..model import Frozen, OneLine
from ..scheduler.protocol import Memory, Name, TimeLimit

#: The module that the hub runs as the user; its first argument is ``list`` or ``prepare``.
COMMANDS_MODULE = "gipfel_extension.services.hub_commands"
_Line = Annotated[OneLine, Field(max_length=1000)]


class ServiceParameter(Frozen):
    """A parameter of a service as the form shows it.

    ``default`` is the text of its default value, ``choices`` are its permitted values, empty for any.
    """

    name: _Line
    type: _Line
    default: OneLine = ""
    required: bool = False
    help: _Line = ""
    choices: tuple[_Line, ...] = ()


class ServiceResources(Frozen):
    """Default resources of a service, for those that the user did not choose; empty or 0: the cluster's."""

    nodes: int = 1
    gpus: int = 0
    cpus: int = 0
    memory: Memory = ""
    time: TimeLimit = ""
    partition: Name = ""


class ServiceOffer(Frozen):
    """A service that a user can start.

    ``memory`` and ``start_s`` are its use of memory just after a start and the seconds that the start took,
    as measured; empty and 0 if unknown. ``about`` is a sentence on what it does.
    """

    name: OneLine = Field(pattern=r"^[a-z0-9-]{1,30}$")
    title: _Line
    about: _Line = ""
    version: _Line = ""
    license: _Line = ""
    memory: _Line = ""
    start_s: float = 0.0
    parameters: tuple[ServiceParameter, ...] = ()
    edf: OneLine = ""
    resources: ServiceResources = ServiceResources()

    @property
    def hourly_cost(self) -> str:
        """Return what an hour of the service costs with its default resources, as text."""
        nodes = self.resources.nodes
        gpus, cpus = nodes * self.resources.gpus, nodes * self.resources.cpus
        used = [f"{gpus} GPU hour{'' if gpus == 1 else 's'}" if gpus else "no GPU"]
        if cpus:
            used.append(f"{cpus} CPU hour{'' if cpus == 1 else 's'}")
        return f"{' and '.join(used)} per hour"


class ServiceOffers(Frozen):
    """All services of a user; ``problems`` has a line for each blueprint that can't be used."""

    services: tuple[ServiceOffer, ...] = ()
    problems: tuple[OneLine, ...] = ()


class ServiceOrder(Frozen):
    """A service to prepare: its blueprint, parameters and environment, and where it will be served.

    ``name`` is the name of its server, ``prefix`` the path of the server's URL. ``host`` is the origin that
    it can have for itself, such as ``https://board--ada.hub.example.org``; if there is none, ``no_host`` is
    the reason. ``is_successor`` means that the service runs and this order is for its next job: then its
    directory is not changed.
    """

    name: str
    blueprint: str
    parameters: dict[str, str] = Field(default_factory=dict)
    prefix: str
    host: str = ""
    no_host: str = ""
    edf: str = ""
    engine: str = ""
    is_successor: bool = False


class PreparedService(Frozen):
    """A service whose directory has been written, or why that was not possible.

    In the latter case only ``problem``, ``fix`` and ``field`` (of the form) are set. ``packages`` is the
    directory with its packages, empty if the job has to create it. ``limit_s`` is the number of seconds from
    the start of its job until it must be ready. ``keep_up``: start it again if its job is killed, fails or
    reaches its time limit. ``overlap_s``: seconds before the time limit at which the next job, which then
    takes over, is submitted; 0 for none. ``has_pages``: the service has pages for browsers. ``host``: it is
    served at the order's host, instead of below its path.
    """

    directory: OneLine = ""
    packages: OneLine = ""
    edf: OneLine = ""
    resources: ServiceResources = ServiceResources()
    limit_s: float = 0.0
    keep_up: bool = False
    overlap_s: int = 0
    has_pages: bool = True
    host: OneLine = ""
    problem: OneLine = ""
    fix: OneLine = ""
    field: OneLine = ""
