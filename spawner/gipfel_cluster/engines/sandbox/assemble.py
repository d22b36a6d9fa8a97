"""Assemble a container's root and variables from a mounted image, and run the command by bwrap or podman.

An image's entry point runs before the command and starts it. Enroot writes it to ``/etc/rc``, a shell script
that takes the command as its arguments and changes to the image's working directory. Sources: Enroot,
``docker::configure`` and ``doc/image-format.md``.
"""

import posix

from ... import namespaces
from ...environment import IMAGE_FILES, compose, parse_environment
from .command import Bwrap, run_podman
from .paths import is_directory, real_path
from .plan import ContainerPlan, PlannedMount
from .rootfs import (
    AccountNames,
    Layers,
    driver_is_enabled,
    mount_driver_files,
    write_host_files,
    write_identity,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .squashfs import SquashfsServer

#: Directories that every container has in addition to the image and its mounts.
SYSTEM_DIRECTORIES = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108 - the container's own, in memory
#: Error handler for variables, which keeps bytes that are not UTF-8.
_ERRORS = "surrogateescape"
_ENTRY_SCRIPT = "/etc/rc"
_SHELL = "/bin/sh"
_CHANGE_DIRECTORY = 'cd -- "$0" && exec "$@"'


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
        Processes that mount the images; they may not be ready yet.
    sources
        For each mount of the plan a directory; a SquashFS file is mounted there.
    ids
        User and group on the host.

    Returns
    -------
    int
        The command's exit status; 128 + n if signal n ended it.

    Raises
    ------
    SandboxError
        The container can't be created.
    """
    layers = Layers(f"{workspace}/lower", f"{workspace}/upper")
    if plan.entrypoint:
        # The entry point is read from the image, so the image must be mounted first.
        _wait(servers)
        servers = ()

        plan.command = with_entry_point(layers, plan.entrypoint_argv, plan.command, plan.workdir)
    if plan.podman:
        mounts, environment = _assemble(plan, layers, servers, sources, ids)
        return _run_in_podman(plan, workspace, mounts, environment, ids)
    # bwrap starts while the images are mounted; its working directory must not be in the workspace.
    posix.chdir("/")
    with Bwrap(plan.program, plan.command) as bwrap:
        posix.chdir(workspace)
        mounts, environment = _assemble(plan, layers, servers, sources, ids)
        posix.chdir("/")
        options = bwrap_options(
            f"{workspace}/merged",
            mounts,
            writable=plan.writable,
            ids=ids,
            workdir=plan.workdir or "/",
            environment=environment,
            hidden=workspace,
            devices=plan.devices,
        )
        return bwrap.run(options)


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
    """Mount the root at ``merged``; return the mounts that bwrap or podman has to make, and the variables."""
    known = {
        name.decode(errors=_ERRORS): value.decode(errors=_ERRORS) for name, value in posix.environ.items()
    }
    host = {name: known[name] for name in plan.inherited if name in known}
    names = AccountNames(*ids)
    _wait(servers)
    image = parse_environment("\n".join(layers.read(f"/{name}") for name in IMAGE_FILES))
    environment = compose(host, image, plan.env, plan.protected)
    mounts = _prepare(plan, layers, sources, environment, ids, names=names)
    options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
    namespaces.mount("overlay", "merged", "overlay", options=options, label="The container's root")
    return mounts, environment


def _run_in_podman(
    plan: ContainerPlan,
    workspace: str,
    mounts: "Sequence[PlannedMount]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> int:
    import os

    from .podman import mount_into_root, podman_argv, podman_environment

    root, folder = f"{workspace}/merged", f"{workspace}/podman"
    posix.mkdir(folder, 0o700)
    podman_mounts = mount_into_root(root, mounts, workspace)
    variables = podman_environment(os.environ, environment, folder, ids)
    words = podman_argv(
        plan,
        root,
        folder,
        podman_mounts=podman_mounts,
        ids=ids,
        workdir=plan.workdir,
        environment=environment,
        podman_variables=variables,
    )
    posix.chdir("/")
    return run_podman([*words, *plan.command], variables)


def _prepare(
    plan: ContainerPlan,
    layers: Layers,
    sources: "Sequence[str]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
    *,
    names: AccountNames,
) -> list[PlannedMount]:
    """Create files and mount points; return the mounts for bwrap or podman."""
    home = environment.get("HOME", "")
    write_host_files(layers)
    write_identity(layers, *ids, home, environment.get("USER", ""), names=names)
    covered = [*SYSTEM_DIRECTORIES]
    for folder in SYSTEM_DIRECTORIES:
        layers.make_directory(folder)
    mounts = mount_driver_files(layers, plan.driver if driver_is_enabled(environment) else ())
    for mount, mounted in zip(plan.mounts, sources, strict=True):
        source = mounted if mount.squashfs else mount.source
        destination = layers.resolve(mount.destination)
        if not _is_covered(destination, covered):
            layers.make_directory(destination) if is_directory(source) else layers.make_file(destination)
        covered.append(destination)
        mounts.append(PlannedMount(source, destination, read_only=mount.read_only))
    for folder in (home, plan.workdir):
        if folder.startswith("/") and not _is_covered(layers.resolve(folder), covered):
            layers.make_directory(folder)
    return mounts


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
        The mounts in order; SquashFS sources are mounted already.
    ids
        User and group in the container.
    hidden
        A directory of the host, without links, that no mount may expose: it holds the container's layers.
    devices
        Device nodes in addition to those that every process needs; None for all of the host's.
    """
    options = ["--unshare-user", "--uid", str(ids[0]), "--gid", str(ids[1])]
    options += ["--bind" if writable else "--ro-bind", root, "/"]
    options += _device_options(devices)
    options += ["--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"]
    options += ["--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108 - the container's own, in memory
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
    # The processes of a job share the host's shared memory and message queues.
    options = ["--dev", "/dev", "--bind-try", "/dev/shm", "/dev/shm"]  # noqa: S108 - the host's
    options += ["--bind-try", "/dev/mqueue", "/dev/mqueue"]
    for device in devices:
        options += ["--dev-bind", device.source, device.destination]
    return options


def with_entry_point(
    layers: "Layers", entrypoint_argv: "Sequence[str]", command: "Sequence[str]", workdir: str
) -> tuple[str, ...]:
    """Return the image's entry point followed by the command, or only the command without an entry point.

    Parameters
    ----------
    entrypoint_argv
        The entry point of the OCI configuration; empty if unknown.
    workdir
        The directory of the command, which overrides the script's; empty for the script's.
    """
    if entrypoint_argv:
        return (*entrypoint_argv, *command)
    if not layers.read(_ENTRY_SCRIPT):
        return tuple(command)
    folder = (_SHELL, "-c", _CHANGE_DIRECTORY, workdir) if workdir else ()
    starter = () if layers.is_executable(_ENTRY_SCRIPT) else (_SHELL,)
    return (*starter, _ENTRY_SCRIPT, *folder, *command)
