"""Make a container and run a command in it: ``python -I -m gipfel_cluster.engines.sandbox``.

The plan is in ``$GIPFEL_CONTAINER``. The outer process passes signals on; the inner one is PID 1 of the
container, mounts everything, and reaps. SIGKILL of the outer one ends the inner one, and with it every
process and every mount.

Only the standard library is imported, so that it starts at once with any Python of the host.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..environment import IMAGE_FILES, compose, parse_environment
from . import namespaces
from .arguments import SYSTEM_FOLDERS, bwrap_options
from .command import run_bwrap, run_podman
from .entry import entered
from .libraries import driver_wanted, place_driver
from .namespaces import SandboxError
from .plan import VARIABLE, Plan, PlannedMount
from .podman_child import fill_root, podman_argv, podman_environment
from .rootfs import Layers, write_host_files, write_identity
from .squashfs import mount_squashfs
from .subordinate import enter_with_subordinate_ids
from .supervise import asked_to_end, hold_signals, shell_status, wait_for

#: The exit status that containers have when it was not the command that failed.
FAILED = 125


def main() -> int:
    """Run the plan of ``$GIPFEL_CONTAINER``; return its exit status, or 125 and say why on stderr."""
    content = os.environ.pop(VARIABLE, "")
    if not content:
        return _failed(SandboxError(f"There is no container to run: {VARIABLE} is not set."))
    try:
        return _outer(Plan.from_json(content))
    except SandboxError as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    sys.stderr.write(f"gipfel: {' '.join(str(error).split())}\n")
    sys.stderr.flush()
    return FAILED


def _outer(plan: Plan) -> int:
    parent = os.getppid()
    ids = os.geteuid(), os.getegid()
    hold_signals()
    if plan.podman:
        enter_with_subordinate_ids(processes=True)
    else:
        namespaces.enter_namespaces()
    namespaces.die_with_parent()
    if os.getppid() != parent:
        return FAILED
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        status = FAILED
        try:
            status = _inner(plan, ids, reader)
        except (SandboxError, OSError) as error:
            status = 128 + asked_to_end() if asked_to_end() else _failed(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the exit status and one line must tell
            status = _failed(SandboxError(f"The container failed: {error!r}."))
        finally:
            os._exit(status)
    os.close(reader)
    return shell_status(wait_for(child, lambda number: os.kill(child, number)))


def _inner(plan: Plan, ids: tuple[int, int], outer: int) -> int:
    namespaces.die_with_parent()
    if namespaces.is_closed(outer):
        return FAILED
    if not any(os.isatty(stream) for stream in range(3)):
        # So that a signal to the caller's process group comes once, by way of the outer process.
        os.setsid()
    namespaces.mount("none", "/", flags=namespaces.RECURSIVE | namespaces.SLAVE)
    nothing_special = namespaces.NO_SUID | namespaces.NO_DEV | namespaces.NO_EXEC
    namespaces.mount("proc", "/proc", "proc", flags=nothing_special, what="The container's /proc")
    workspace = _make_workspace(plan.scratch)
    layers = Layers(f"{workspace}/lower", f"{workspace}/upper")
    _mount_image(plan.squashfuse, plan.image, f"{workspace}/lower", others=plan.podman)
    host = {name: os.environ[name] for name in plan.offered if name in os.environ}
    image = parse_environment("\n".join(layers.read(f"/{name}") for name in IMAGE_FILES))
    environment = compose(host, image, plan.env, plan.binding)
    mounts = _prepare(plan, layers, workspace, environment, ids)
    options = "lowerdir=lower,upperdir=upper,workdir=work,userxattr"
    namespaces.mount("overlay", "merged", "overlay", options=options, what="The container's root")
    if plan.entrypoint:
        command = entered(layers, plan.entry, plan.command, plan.workdir)
        plan = dataclasses.replace(plan, command=command)
    run = _run_podman if plan.podman else _run_bwrap
    return run(plan, workspace, mounts, environment, ids)


def _run_bwrap(
    plan: Plan,
    workspace: str,
    mounts: Sequence[PlannedMount],
    environment: Mapping[str, str],
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


def _run_podman(
    plan: Plan,
    workspace: str,
    mounts: Sequence[PlannedMount],
    environment: Mapping[str, str],
    ids: tuple[int, int],
) -> int:
    root, folder = f"{workspace}/merged", f"{workspace}/podman"
    Path(folder).mkdir(mode=0o700)
    own = fill_root(root, mounts, workspace)
    given = podman_environment(os.environ, environment, folder, ids)
    words = podman_argv(
        plan, root, folder, own=own, ids=ids, workdir=plan.workdir, environment=environment, given=given
    )
    os.chdir("/")
    return run_podman([*words, *plan.command], given)


def _make_workspace(scratch: str) -> str:
    workspace = os.path.realpath(scratch) + "/container"
    Path(workspace).mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = namespaces.NO_SUID | namespaces.NO_DEV
    namespaces.mount("tmpfs", workspace, "tmpfs", flags=flags, options="mode=0700", what="The upper layer")
    # Relative names spare the overlay's options every special character of the path.
    os.chdir(workspace)
    for folder in ("lower", "upper", "work", "merged"):
        Path(folder).mkdir()
    # The root of the container has the mode of this folder, whatever the umask is.
    Path("upper").chmod(0o755)
    return workspace


def _mount_image(squashfuse: str, image: str, target: str, *, others: bool) -> None:
    if Path(image).is_dir():
        flags = namespaces.BIND | namespaces.RECURSIVE
        namespaces.mount(image, target, flags=flags, what=f"The image {image}")
    else:
        mount_squashfs(squashfuse, image, target, others=others)


def _prepare(
    plan: Plan, layers: Layers, workspace: str, environment: Mapping[str, str], ids: tuple[int, int]
) -> list[PlannedMount]:
    """Make files and mount points; return the mounts as bwrap is to make them."""
    home = environment.get("HOME", "")
    write_host_files(layers)
    write_identity(layers, *ids, home, environment.get("USER", ""))
    covered = [*SYSTEM_FOLDERS]
    for folder in SYSTEM_FOLDERS:
        layers.folder(folder)
    mounts = place_driver(layers, plan.driver) if driver_wanted(environment) else []
    for number, mount in enumerate(plan.mounts):
        source = mount.source
        if mount.squashfs:
            source = f"{workspace}/mount-{number}"
            Path(source).mkdir()
            _mount_image(plan.squashfuse, mount.source, source, others=plan.podman)
        destination = layers.resolve(mount.destination)
        if not _is_covered(destination, covered):
            layers.folder(destination) if Path(source).is_dir() else layers.file(destination)
        covered.append(destination)
        mounts.append(dataclasses.replace(mount, source=source, destination=destination))
    for folder in (home, plan.workdir):
        if folder.startswith("/") and not _is_covered(layers.resolve(folder), covered):
            layers.folder(folder)
    return mounts


def _is_covered(path: str, mounted: Sequence[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in mounted)


if __name__ == "__main__":
    sys.exit(main())
