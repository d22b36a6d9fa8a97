"""Create a container and run a command in it, as the plan in ``$GIPFEL_CONTAINER`` says.

The outer process forwards signals. The inner one is PID 1 of the container, mounts everything and reaps
children. SIGKILL of the outer one ends the inner one, and with it all processes and mounts.
"""

import posix
import sys

from ... import namespaces
from ...namespaces import SandboxError
from .paths import is_directory, make_directory, real_path
from .plan import VARIABLE, ContainerPlan
from .squashfs import SquashfsServer
from .supervise import block_signals, pending_end_signal, shell_status, wait_for_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: The exit status for a failure of the container itself, as of docker and podman.
FAILED = 125


def run() -> int:
    """Run the plan of ``$GIPFEL_CONTAINER``; return its exit status, or 125 with the reason on stderr."""
    content = posix.environ.pop(VARIABLE.encode(), b"").decode()
    if not content:
        return _failed(SandboxError(f"There is no container to run: the variable {VARIABLE} is not set."))
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
    block_signals()
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
        except Exception as error:  # noqa: BLE001 - any error becomes an exit status and one line
            status = _failed(SandboxError(f"The container failed: {error!r}."))
        finally:
            posix._exit(status)  # noqa: SLF001 - its name
    posix.close(reader)
    return shell_status(wait_for_child(child, lambda number: posix.kill(child, number)))


def _inner(plan: ContainerPlan, ids: tuple[int, int], outer: int) -> int:
    namespaces.die_with_parent()
    if namespaces.is_closed(outer):
        return FAILED
    if not any(posix.isatty(stream) for stream in range(3)):
        # A signal to the caller's process group must arrive once, through the outer process.
        posix.setsid()
    namespaces.mount("none", "/", flags=namespaces.RECURSIVE | namespaces.SLAVE)
    restricted = namespaces.NO_SUID | namespaces.NO_DEV | namespaces.NO_EXEC
    namespaces.mount("proc", "/proc", "proc", flags=restricted, label="The container's /proc")
    workspace = _make_workspace(plan.scratch)
    sources = [f"{workspace}/mount-{number}" for number in range(len(plan.mounts))]
    servers = _mount_images(plan, f"{workspace}/lower", sources)
    # Imported here, while the images are being mounted.
    from .assemble import run_in_image

    return run_in_image(plan, workspace, servers, sources, ids)


def _make_workspace(scratch: str) -> str:
    workspace = f"{scratch.rstrip('/')}/container"
    make_directory(workspace)
    workspace = real_path(workspace)
    flags = namespaces.NO_SUID | namespaces.NO_DEV
    namespaces.mount("tmpfs", workspace, "tmpfs", flags=flags, options="mode=0700", label="The upper layer")
    # Relative paths keep special characters of the directory out of the overlay's options.
    posix.chdir(workspace)
    for folder in ("lower", "upper", "work", "merged"):
        posix.mkdir(folder)
    # The root of the container gets the mode of this directory, which must not depend on the umask.
    posix.chmod("upper", 0o755)
    return workspace


def _mount_images(plan: ContainerPlan, lower: str, sources: "Sequence[str]") -> list[SquashfsServer]:
    """Mount the image and the SquashFS mounts at directories of the workspace, in parallel."""
    images = [(plan.image, lower)]
    for mount, source in zip(plan.mounts, sources, strict=True):
        if mount.squashfs:
            posix.mkdir(source)
            images.append((mount.source, source))
    servers = []
    for image, target in images:
        if is_directory(image):
            flags = namespaces.BIND | namespaces.RECURSIVE
            namespaces.mount(image, target, flags=flags, label=f"The image {image}")
        else:
            servers.append(SquashfsServer(plan.squashfuse, image, target, allow_other=plan.podman))
    return servers
