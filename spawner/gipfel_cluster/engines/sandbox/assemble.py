"""From a mounted image to the command's end: the container's variables, its root, and bwrap or podman.

An image's entry point runs before the command and starts it. Enroot keeps it in ``/etc/rc``, a script for the
shell that takes the command as its arguments and enters the image's own working directory. Sources: Enroot,
``docker::configure`` and ``doc/image-format.md``.
"""

import posix

from ... import namespaces
from ...environment import IMAGE_FILES, compose, parse_environment
from .command import Bwrap, run_podman
from .paths import is_folder, real_path
from .plan import ContainerPlan, PlannedMount
from .rootfs import Layers, Names, driver_wanted, place_driver, write_host_files, write_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .squashfs import SquashfsServer

#: What every container has beside the image and its mounts.
SYSTEM_FOLDERS = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108 - the container's own, in memory
#: Variables are bytes, which come out as they went in.
_ANY = "surrogateescape"
_ENTRY_SCRIPT = "/etc/rc"
_SHELL = "/bin/sh"
_ENTER_FOLDER = 'cd -- "$0" && exec "$@"'


def run_in_image(
    plan: ContainerPlan,
    workspace: str,
    servers: "Sequence[SquashfsServer]",
    sources: "Sequence[str]",
    ids: tuple[int, int],
) -> int:
    """Run the plan's command in the image at ``lower`` of the workspace, which is the working directory.

    Parameters
    ----------
    servers
        What mounts the images, maybe not done yet.
    sources
        For each mount of the plan the directory where it is, if it is an image itself.
    ids
        User and group on the host.

    Returns
    -------
    int
        The command's exit status; 128 + n where signal n ended it.

    Raises
    ------
    SandboxError
        The container can't be made.
    """
    layers = Layers(f"{workspace}/lower", f"{workspace}/upper")
    if plan.entrypoint:
        # The entry point is read from the image.
        _wait(servers)
        servers = ()

        plan.command = with_entry_point(layers, plan.entry, plan.command, plan.workdir)
    if plan.podman:
        mounts, environment = _assemble(plan, layers, servers, sources, ids)
        return _run_in_podman(plan, workspace, mounts, environment, ids)
    # bwrap is loaded while the images are mounted; its working directory must not be one of ours.
    posix.chdir("/")
    with Bwrap(plan.program, plan.command) as bwrap:
        posix.chdir(workspace)
        mounts, environment = _assemble(plan, layers, servers, sources, ids)
        posix.chdir("/")
        return bwrap.run(_options(plan, workspace, mounts, environment, ids))


def _wait(servers: "Sequence[SquashfsServer]") -> None:
    for server in servers:
        server.wait()


def _assemble(
    plan: ContainerPlan,
    layers: Layers,
    servers: "Sequence[SquashfsServer]",
    sources: "Sequence[str]",
    ids: tuple[int, int],
) -> tuple[list[PlannedMount], dict[str, str]]:
    """Make the root at ``merged``; return the mounts that are still to be made, and the variables."""
    known = {name.decode(errors=_ANY): value.decode(errors=_ANY) for name, value in posix.environ.items()}
    host = {name: known[name] for name in plan.offered if name in known}
    names = Names(*ids)
    _wait(servers)
    image = parse_environment("\n".join(layers.read(f"/{name}") for name in IMAGE_FILES))
    environment = compose(host, image, plan.env, plan.binding)
    mounts = _prepare(plan, layers, sources, environment, ids, names=names)
    options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
    namespaces.mount("overlay", "merged", "overlay", options=options, what="The container's root")
    return mounts, environment


def _options(
    plan: ContainerPlan,
    workspace: str,
    mounts: "Sequence[PlannedMount]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> list[str]:
    return bwrap_options(
        f"{workspace}/merged",
        mounts,
        writable=plan.writable,
        ids=ids,
        workdir=plan.workdir or "/",
        environment=environment,
        hidden=workspace,
        devices=plan.devices,
    )


def _run_in_podman(
    plan: ContainerPlan,
    workspace: str,
    mounts: "Sequence[PlannedMount]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> int:
    import os

    from .podman import fill_root, podman_argv, podman_environment

    root, folder = f"{workspace}/merged", f"{workspace}/podman"
    posix.mkdir(folder, 0o700)
    own = fill_root(root, mounts, workspace)
    given = podman_environment(os.environ, environment, folder, ids)
    words = podman_argv(
        plan, root, folder, own=own, ids=ids, workdir=plan.workdir, environment=environment, given=given
    )
    posix.chdir("/")
    return run_podman([*words, *plan.command], given)


def _prepare(
    plan: ContainerPlan,
    layers: Layers,
    sources: "Sequence[str]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
    *,
    names: Names,
) -> list[PlannedMount]:
    """Make files and mount points; return the mounts as bwrap is to make them."""
    home = environment.get("HOME", "")
    write_host_files(layers)
    write_identity(layers, *ids, home, environment.get("USER", ""), names=names)
    covered = [*SYSTEM_FOLDERS]
    for folder in SYSTEM_FOLDERS:
        layers.folder(folder)
    mounts = _driver_mounts(plan, layers, environment)
    for mount, mounted in zip(plan.mounts, sources, strict=True):
        source = mounted if mount.squashfs else mount.source
        destination = layers.resolve(mount.destination)
        if not _is_covered(destination, covered):
            layers.folder(destination) if is_folder(source) else layers.file(destination)
        covered.append(destination)
        mounts.append(PlannedMount(source, destination, read_only=mount.read_only))
    for folder in (home, plan.workdir):
        if folder.startswith("/") and not _is_covered(layers.resolve(folder), covered):
            layers.folder(folder)
    return mounts


def _driver_mounts(
    plan: ContainerPlan, layers: Layers, environment: "Mapping[str, str]"
) -> list[PlannedMount]:
    if not plan.driver:
        return []
    return place_driver(layers, plan.driver) if driver_wanted(environment) else []


def _is_covered(path: str, mounted: "Sequence[str]") -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in mounted)


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
        The directory that becomes the container's root.
    mounts
        In their order; sources are mounted already where they are images.
    ids
        User and group in the container.
    hidden
        A directory of the host, free of links, that no mount may show: the container's own layers are there.
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


def with_entry_point(
    layers: "Layers", entry: "Sequence[str]", command: "Sequence[str]", workdir: str
) -> tuple[str, ...]:
    """Return the command behind the image's entry point; without one, the command as it is.

    Parameters
    ----------
    entry
        The words of its OCI configuration; empty where that is not known.
    workdir
        Where the command starts, whatever directory the script enters; empty for the script's.
    """
    if entry:
        return (*entry, *command)
    if not layers.read(_ENTRY_SCRIPT):
        return tuple(command)
    folder = (_SHELL, "-c", _ENTER_FOLDER, workdir) if workdir else ()
    starter = () if layers.is_executable(_ENTRY_SCRIPT) else (_SHELL,)
    return (*starter, _ENTRY_SCRIPT, *folder, *command)
