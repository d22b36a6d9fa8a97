"""From a mounted image to the command's end: the container's variables, its root, and bwrap or podman."""

import posix

from ...environment import IMAGE_FILES, compose, parse_environment
from . import namespaces
from .arguments import SYSTEM_FOLDERS, bwrap_options
from .command import Bwrap, run_podman
from .paths import is_folder
from .plan import Plan, PlannedMount
from .rootfs import Layers, Names, write_host_files, write_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .squashfs import SquashfsServer

#: Variables are bytes, which come out as they went in.
_ANY = "surrogateescape"


def run_in_image(
    plan: Plan,
    workspace: str,
    servers: "Sequence[SquashfsServer]",
    sources: "Sequence[str]",
    ids: tuple[int, int],
) -> int:
    """Run the plan's command in the image at ``lower`` of the workspace, which is the working folder.

    Parameters
    ----------
    servers
        What mounts the images, maybe not done yet.
    sources
        For each mount of the plan the folder where it is, if it is an image itself.
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
        # What is run stands in the image.
        _wait(servers)
        servers = ()
        from .entry import entered

        plan.command = entered(layers, plan.entry, plan.command, plan.workdir)
    if plan.podman:
        mounts, environment = _assemble(plan, layers, servers, sources, ids)
        return _run_in_podman(plan, workspace, mounts, environment, ids)
    # bwrap is loaded while the images are mounted; its working folder must not be one of ours.
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
    plan: Plan,
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
    plan: Plan,
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
    plan: Plan,
    workspace: str,
    mounts: "Sequence[PlannedMount]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> int:
    import os

    from .podman_child import fill_root, podman_argv, podman_environment

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
    plan: Plan,
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


def _driver_mounts(plan: Plan, layers: Layers, environment: "Mapping[str, str]") -> list[PlannedMount]:
    if not plan.driver:
        return []
    from .libraries import driver_wanted, place_driver

    return place_driver(layers, plan.driver) if driver_wanted(environment) else []


def _is_covered(path: str, mounted: "Sequence[str]") -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in mounted)
