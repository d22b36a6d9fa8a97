"""What `bubblewrap` tells `sandbox`: plain data, so that the sandbox needs only the standard library."""

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
class Plan:
    """A container to be made and a command to be run in it."""

    image: str
    command: tuple[str, ...]
    scratch: str
    bwrap: str
    squashfuse: str
    workdir: str = ""
    writable: bool = True
    mounts: tuple[PlannedMount, ...] = ()
    #: Names of the sandbox's own variables that the container is offered.
    offered: tuple[str, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    binding: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write the plan as one line."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read what `to_json` wrote."""
        content = json.loads(text)
        content["mounts"] = tuple(PlannedMount(**mount) for mount in content["mounts"])
        for name in ("command", "offered", "binding"):
            content[name] = tuple(content[name])
        return cls(**content)
