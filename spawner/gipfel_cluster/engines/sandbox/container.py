"""Make a container and run a command in it, by the plan in ``$GIPFEL_CONTAINER``.

The outer process passes signals on; the inner one is PID 1 of the container, mounts everything, and reaps.
SIGKILL of the outer one ends the inner one, and with it every process and every mount.
"""

import posix
import sys

from ... import namespaces
from ...namespaces import SandboxError
from .paths import is_folder, make_folder, real_path
from .plan import VARIABLE, ContainerPlan
from .squashfs import SquashfsServer
from .supervise import hold_signals, pending_end_signal, shell_status, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The exit status that containers have when it was not the command that failed.
FAILED = 125


def run() -> int:
    """Run the plan of ``$GIPFEL_CONTAINER``; return its exit status, or 125 with the reason on stderr."""
    content = posix.environ.pop(VARIABLE.encode(), b"").decode()
    if not content:
        return _failed(SandboxError(f"There is no container to run: {VARIABLE} is not set."))
    try:
        return _outer(ContainerPlan.from_json(content))
    except SandboxError as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    sys.stderr.write(f"gipfel: {' '.join(str(error).split())}\n")
    sys.stderr.flush()
    return FAILED


def _outer(plan: ContainerPlan) -> int:
    parent = posix.getppid()
    ids = posix.geteuid(), posix.getegid()
    hold_signals()
    if plan.podman:
        from .podman import enter_with_subordinate_ids

        enter_with_subordinate_ids(processes=True)
    else:
        namespaces.enter_namespaces()
    namespaces.die_with_parent()
    if posix.getppid() != parent:
        return FAILED
    reader, writer = posix.pipe()
    child = posix.fork()
    if child == 0:
        posix.close(writer)
        status = FAILED
        try:
            status = _inner(plan, ids, reader)
        except (SandboxError, OSError) as error:
            status = 128 + pending_end_signal() if pending_end_signal() else _failed(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, it becomes an exit status and one line
            status = _failed(SandboxError(f"The container failed: {error!r}."))
        finally:
            posix._exit(status)  # noqa: SLF001 - its name
    posix.close(reader)
    return shell_status(wait_for(child, lambda number: posix.kill(child, number)))


def _inner(plan: ContainerPlan, ids: tuple[int, int], outer: int) -> int:
    namespaces.die_with_parent()
    if namespaces.is_closed(outer):
        return FAILED
    if not any(posix.isatty(stream) for stream in range(3)):
        # So that a signal to the caller's process group comes once, by way of the outer process.
        posix.setsid()
    namespaces.mount("none", "/", flags=namespaces.RECURSIVE | namespaces.SLAVE)
    nothing_special = namespaces.NO_SUID | namespaces.NO_DEV | namespaces.NO_EXEC
    namespaces.mount("proc", "/proc", "proc", flags=nothing_special, what="The container's /proc")
    workspace = _make_workspace(plan.scratch)
    sources = [f"{workspace}/mount-{number}" for number in range(len(plan.mounts))]
    servers = _mount_images(plan, f"{workspace}/lower", sources)
    # Here, because it is loaded while the images are mounted.
    from .assemble import run_in_image

    return run_in_image(plan, workspace, servers, sources, ids)


def _make_workspace(scratch: str) -> str:
    workspace = f"{scratch.rstrip('/')}/container"
    make_folder(workspace)
    workspace = real_path(workspace)
    flags = namespaces.NO_SUID | namespaces.NO_DEV
    namespaces.mount("tmpfs", workspace, "tmpfs", flags=flags, options="mode=0700", what="The upper layer")
    # Relative names spare the overlay's options every special character of the path.
    posix.chdir(workspace)
    for folder in ("lower", "upper", "work", "merged"):
        posix.mkdir(folder)
    # The root of the container has the mode of this directory, whatever the umask is.
    posix.chmod("upper", 0o755)
    return workspace


def _mount_images(plan: ContainerPlan, lower: str, sources: "Sequence[str]") -> list[SquashfsServer]:
    """Mount the image, and what is mounted as an image, at directories of the workspace, all at once."""
    images = [(plan.image, lower)]
    for mount, source in zip(plan.mounts, sources, strict=True):
        if mount.squashfs:
            posix.mkdir(source)
            images.append((mount.source, source))
    servers = []
    for image, target in images:
        if is_folder(image):
            flags = namespaces.BIND | namespaces.RECURSIVE
            namespaces.mount(image, target, flags=flags, what=f"The image {image}")
        else:
            servers.append(SquashfsServer(plan.squashfuse, image, target, others=plan.podman))
    return servers
