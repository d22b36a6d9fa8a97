"""From a mounted image to the command's end: the container's variables, its root, and bwrap or podman."""

import os

from ...environment import IMAGE_FILES, compose, parse_environment
from . import namespaces
from .arguments import SYSTEM_FOLDERS, bwrap_options
from .command import run_bwrap, run_podman
from .plan import Plan, PlannedMount
from .rootfs import Layers, write_host_files, write_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run_in_image(plan: Plan, workspace: str, sources: "Sequence[str]", ids: tuple[int, int]) -> int:
    """Run the plan's command in the image at ``lower`` of the workspace, which is the working folder.

    Parameters
    ----------
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
    host = {name: os.environ[name] for name in plan.offered if name in os.environ}
    image = parse_environment("\n".join(layers.read(f"/{name}") for name in IMAGE_FILES))
    environment = compose(host, image, plan.env, plan.binding)
    mounts = _prepare(plan, layers, sources, environment, ids)
    options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
    namespaces.mount("overlay", "merged", "overlay", options=options, what="The container's root")
    if plan.entrypoint:
        from .entry import entered

        plan.command = entered(layers, plan.entry, plan.command, plan.workdir)
    run_in = _run_in_podman if plan.podman else _run_in_bwrap
    return run_in(plan, workspace, mounts, environment, ids)


def _run_in_bwrap(
    plan: Plan,
    workspace: str,
    mounts: "Sequence[PlannedMount]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> int:
    arguments = bwrap_options(
        f"{workspace}/merged",
        mounts,
        writable=plan.writable,
        ids=ids,
        workdir=plan.workdir or "/",
        environment=environment,
        hidden=workspace,
        devices=plan.devices,
    )
    os.chdir("/")
    return run_bwrap(plan.program, arguments, plan.command)


def _run_in_podman(
    plan: Plan,
    workspace: str,
    mounts: "Sequence[PlannedMount]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> int:
    from .podman_child import fill_root, podman_argv, podman_environment

    root, folder = f"{workspace}/merged", f"{workspace}/podman"
    os.mkdir(folder, 0o700)
    own = fill_root(root, mounts, workspace)
    given = podman_environment(os.environ, environment, folder, ids)
    words = podman_argv(
        plan, root, folder, own=own, ids=ids, workdir=plan.workdir, environment=environment, given=given
    )
    os.chdir("/")
    return run_podman([*words, *plan.command], given)


def _prepare(
    plan: Plan,
    layers: Layers,
    sources: "Sequence[str]",
    environment: "Mapping[str, str]",
    ids: tuple[int, int],
) -> list[PlannedMount]:
    """Make files and mount points; return the mounts as bwrap is to make them."""
    home = environment.get("HOME", "")
    write_host_files(layers)
    write_identity(layers, *ids, home, environment.get("USER", ""))
    covered = [*SYSTEM_FOLDERS]
    for folder in SYSTEM_FOLDERS:
        layers.folder(folder)
    mounts = _driver_mounts(plan, layers, environment)
    for mount, mounted in zip(plan.mounts, sources, strict=True):
        source = mounted if mount.squashfs else mount.source
        destination = layers.resolve(mount.destination)
        if not _is_covered(destination, covered):
            layers.folder(destination) if os.path.isdir(source) else layers.file(destination)
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
