"""The options of bwrap for one container."""

from .paths import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .plan import PlannedMount

#: What every container has beside the image and its mounts.
SYSTEM_FOLDERS = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108 - the container's own, in memory


def bwrap_options(
    root: str,
    mounts: "Iterable[PlannedMount]",
    *,
    writable: bool,
    ids: tuple[int, int],
    workdir: str,
    environment: "Mapping[str, str]",
    hidden: str,
    devices: "Iterable[PlannedMount] | None" = None,
) -> list[str]:
    """List the options of bwrap.

    Parameters
    ----------
    root
        The folder that becomes the container's root.
    mounts
        In their order; sources are mounted already where they are images.
    ids
        User and group in the container.
    hidden
        A folder of the host, free of links, that no mount may show: the container's own layers are there.
    devices
        The only nodes beside those that every process needs; None for all of the host's.
    """
    mounts = list(mounts)
    options = ["--unshare-user", "--uid", str(ids[0]), "--gid", str(ids[1])]
    options += ["--bind" if writable else "--ro-bind", root, "/"]
    options += _device_options(devices)
    options += ["--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"]
    options += ["--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108 - as above
    for mount in mounts:
        options += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.destination]
        source = real_path(mount.source).rstrip("/")
        if hidden.startswith(f"{source}/"):
            options += ["--tmpfs", mount.destination.rstrip("/") + hidden[len(source) :]]
    options += ["--chdir", workdir, "--clearenv"]
    for name, value in environment.items():
        options += ["--setenv", name, value]
    return options


def _device_options(devices: "Iterable[PlannedMount] | None") -> list[str]:
    if devices is None:
        return ["--dev-bind", "/dev", "/dev"]
    # The host's shared memory and message queues: the processes of a job share them.
    options = ["--dev", "/dev", "--bind-try", "/dev/shm", "/dev/shm"]  # noqa: S108 - the host's
    options += ["--bind-try", "/dev/mqueue", "/dev/mqueue"]
    for device in devices:
        options += ["--dev-bind", device.source, device.destination]
    return options
