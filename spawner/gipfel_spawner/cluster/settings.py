"""The clusters of a hub: what a site sets of each, by its name."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gipfel_cluster.model import Frozen, GipfelError, Line

#: As it stands in run folders.
ClusterName = Annotated[Line, Field(pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,31})?$")]

PartitionName = Annotated[Line, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", max_length=128)]


class ClusterSettings(Frozen):
    """One cluster, or one group of a cluster's partitions under a name of its own.

    ``partitions`` are those that are offered, all where it is empty; ``environment`` goes to the scheduler's
    commands and to jobs; ``hub_connect_url`` is where the nodes reach the hub, empty for the hub's own
    address. All else is as the spawner's trait of that name, which is taken where nothing is set.
    """

    name: Annotated[ClusterName, Field(min_length=1)]
    scheduler: Literal["local", "slurm", "broker"]
    partitions: tuple[PartitionName, ...] = ()
    environment: dict[str, Line] = Field(default_factory=dict)
    exec_prefix: Line = ""
    broker_socket: Line = ""
    engine: Line = ""
    engines: tuple[Line, ...] = ()
    runtime: Line = ""
    python: Line = ""
    hub_connect_url: Line = ""

    @property
    def is_local(self) -> bool:
        """Whether jobs are processes of the hub's machine."""
        return self.scheduler == "local"


def read_clusters(given: Mapping[str, object], only: ClusterSettings) -> dict[str, ClusterSettings]:
    """The clusters by their names, the default one first; ``only`` where none is given, else their default.

    Raises
    ------
    GipfelError
        One of them can't be used.
    """
    if not given:
        return {only.name: only}
    found: dict[str, ClusterSettings] = {}
    for name, content in given.items():
        if not isinstance(content, Mapping) or "name" in content:
            raise GipfelError(f"EDFSpawner.clusters: {name!r} needs a dictionary of its settings.")
        found[str(name)] = _read(str(name), content, only)
    return found


def _read(name: str, content: Mapping[Any, object], only: ClusterSettings) -> ClusterSettings:
    try:
        read = ClusterSettings.model_validate(only.model_dump() | dict(content) | {"name": name})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise GipfelError(f"EDFSpawner.clusters: {name!r}: {where}: {first['msg']}.") from None
    if read.scheduler == "broker" and not read.broker_socket.startswith("/"):
        raise GipfelError(
            f"EDFSpawner.clusters: {name!r} has no broker_socket.", "Give the path of the broker's socket."
        )
    return read
