"""The plan that an engine hands to the sandbox: plain data, read without slow imports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: The environment variable that carries a plan, because an argv can be read by everybody.
VARIABLE = "GIPFEL_CONTAINER"


class _Record:
    """Data that are equal where their values are; a dataclass takes longer to import than to start."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )


class PlannedMount(_Record):
    """One mount: ``squashfs`` sources are mounted, others bound."""

    def __init__(
        self, source: str, destination: str, *, read_only: bool = False, squashfs: bool = False
    ) -> None:
        self.source = source
        self.destination = destination
        self.read_only = read_only
        self.squashfs = squashfs


class DriverFile(_Record):
    """A file of the host's GPU driver.

    Parameters
    ----------
    destination
        Empty for where the image keeps its libraries.
    links
        More names that the file has in its directory.
    """

    def __init__(self, source: str, destination: str = "", links: "Sequence[str]" = ()) -> None:
        self.source = source
        self.destination = destination
        self.links = tuple(links)


class ContainerPlan(_Record):
    """A container to be made and a command to be run in it.

    Parameters
    ----------
    program
        What makes the container of the prepared root: bwrap, or with ``podman`` podman.
    offered
        Names of the sandbox's own variables that the container is offered.
    devices
        Device nodes that the container sees; None for all of the host's.
    entrypoint
        Run the image's entry point, which the words ``entry`` are, or else its ``/etc/rc``.
    """

    def __init__(
        self,
        *,
        image: str,
        command: "Sequence[str]",
        scratch: str,
        squashfuse: str,
        program: str,
        podman: bool = False,
        workdir: str = "",
        writable: bool = True,
        mounts: "Sequence[PlannedMount]" = (),
        offered: "Sequence[str]" = (),
        env: "Mapping[str, str] | None" = None,
        binding: "Sequence[str]" = (),
        devices: "Sequence[PlannedMount] | None" = None,
        driver: "Sequence[DriverFile]" = (),
        entrypoint: bool = False,
        entry: "Sequence[str]" = (),
    ) -> None:
        self.image = image
        self.command = tuple(command)
        self.scratch = scratch
        self.squashfuse = squashfuse
        self.program = program
        self.podman = podman
        self.workdir = workdir
        self.writable = writable
        self.mounts = tuple(mounts)
        self.offered = tuple(offered)
        self.env = dict(env or {})
        self.binding = tuple(binding)
        self.devices = None if devices is None else tuple(devices)
        self.driver = tuple(driver)
        self.entrypoint = entrypoint
        self.entry = tuple(entry)

    def to_json(self) -> str:
        """Write the plan as one line."""
        import json

        return json.dumps(self, default=vars, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ContainerPlan":
        """Read what `to_json` wrote."""
        content = read_json(text)
        content["mounts"] = [PlannedMount(**each) for each in content["mounts"]]
        if content["devices"] is not None:
            content["devices"] = [PlannedMount(**each) for each in content["devices"]]
        content["driver"] = [DriverFile(**each) for each in content["driver"]]
        return cls(**content)


def read_json(text: str) -> "Any":
    """Read JSON without spaces around it, by the part of ``json`` that is in C where there is one."""
    try:
        from _json import make_scanner

        return make_scanner(_Reading())(text, 0)[0]  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError):
        import json

        return json.loads(text)


class _Reading:
    """The settings that ``json`` gives to its part in C."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
