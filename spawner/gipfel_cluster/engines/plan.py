"""What `bubblewrap` and `podman` tell `sandbox`: plain data, for which the standard library is enough."""

import dataclasses
import json
from dataclasses import dataclass

#: The environment variable that carries a plan, because an argv can be read by everybody.
VARIABLE = "GIPFEL_CONTAINER"


@dataclass(frozen=True)
class PlannedMount:
    """One mount: ``squashfs`` sources are mounted, others bound."""

    source: str
    destination: str
    read_only: bool = False
    squashfs: bool = False


@dataclass(frozen=True)
class DriverFile:
    """A file of the host's GPU driver; without a destination it goes where the image keeps its libraries."""

    source: str
    destination: str = ""
    #: More names that the file has in its folder.
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A container to be made and a command to be run in it."""

    image: str
    command: tuple[str, ...]
    scratch: str
    squashfuse: str
    #: The program that makes the container of the prepared root: bwrap, or with `podman` true podman.
    program: str
    podman: bool = False
    workdir: str = ""
    writable: bool = True
    mounts: tuple[PlannedMount, ...] = ()
    #: Names of the sandbox's own variables that the container is offered.
    offered: tuple[str, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    binding: tuple[str, ...] = ()
    #: Device nodes that the container sees; None for all of the host's.
    devices: tuple[PlannedMount, ...] | None = None
    driver: tuple[DriverFile, ...] = ()
    #: Run the image's entry point, which these words are, or else its ``/etc/rc``.
    entrypoint: bool = False
    entry: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write the plan as one line."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what `to_json` wrote."""
        content = json.loads(text)
        for name in ("command", "offered", "binding", "entry"):
            content[name] = tuple(content[name])
        content["mounts"] = tuple(PlannedMount(**mount) for mount in content["mounts"])
        if content["devices"] is not None:
            content["devices"] = tuple(PlannedMount(**device) for device in content["devices"])
        content["driver"] = tuple(
            DriverFile(**{**each, "links": tuple(each["links"])}) for each in content["driver"]
        )
        return cls(**content)
