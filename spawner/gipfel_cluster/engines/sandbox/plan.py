"""The plan that an engine passes to the sandbox: plain data, parsed without slow imports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: The environment variable with the plan; an argv would be visible to all users of the machine.
VARIABLE = "GIPFEL_CONTAINER"


class _PlainData:
    """Base class of plain data, compared by value; importing `dataclasses` would take too long."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )


class PlannedMount(_PlainData):
    """One mount: a ``squashfs`` source is mounted as a file system, any other is bind-mounted."""

    def __init__(
        self, source: str, destination: str, *, read_only: bool = False, squashfs: bool = False
    ) -> None:
        self.source = source
        self.destination = destination
        self.read_only = read_only
        self.squashfs = squashfs


class DriverFile(_PlainData):
    """A file of the host's GPU driver.

    Parameters
    ----------
    destination
        The path in the container; empty for the image's library directory.
    links
        Names of symbolic links to the file in its directory.
    """

    def __init__(self, source: str, destination: str = "", links: "Sequence[str]" = ()) -> None:
        self.source = source
        self.destination = destination
        self.links = tuple(links)


class ContainerPlan(_PlainData):
    """A container to create and a command to run in it.

    Parameters
    ----------
    program
        The path of bwrap, or of podman if ``podman`` is set; it starts the container from the prepared root.
    inherited
        Names of the sandbox's own variables that the container inherits.
    devices
        Device nodes in the container; None for all of the host's.
    entrypoint
        Run the image's entry point: ``entrypoint_argv``, or else its ``/etc/rc``.
    entrypoint_argv
        The argv of the entry point in the image's OCI configuration.
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
        inherited: "Sequence[str]" = (),
        env: "Mapping[str, str] | None" = None,
        protected: "Sequence[str]" = (),
        devices: "Sequence[PlannedMount] | None" = None,
        driver: "Sequence[DriverFile]" = (),
        entrypoint: bool = False,
        entrypoint_argv: "Sequence[str]" = (),
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
        self.inherited = tuple(inherited)
        self.env = dict(env or {})
        self.protected = tuple(protected)
        self.devices = None if devices is None else tuple(devices)
        self.driver = tuple(driver)
        self.entrypoint = entrypoint
        self.entrypoint_argv = tuple(entrypoint_argv)

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        import json

        return json.dumps(self, default=vars, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ContainerPlan":
        """Return the plan that `to_json` wrote."""
        content = read_json(text)
        content["mounts"] = [PlannedMount(**each) for each in content["mounts"]]
        if content["devices"] is not None:
            content["devices"] = [PlannedMount(**each) for each in content["devices"]]
        content["driver"] = [DriverFile(**each) for each in content["driver"]]
        return cls(**content)


def read_json(text: str) -> "Any":
    """Parse JSON without surrounding spaces, importing only the C part of ``json`` if that is available."""
    try:
        from _json import make_scanner

        return make_scanner(_ScannerSettings())(text, 0)[0]  # type: ignore[arg-type]
    except (ImportError, AttributeError, TypeError):
        import json

        return json.loads(text)


class _ScannerSettings:
    """The settings that ``json`` passes to its scanner in C."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
