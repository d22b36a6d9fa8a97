"""Prepare podman's root, options, environment and user namespace, and run it.

``start.py mounted COMMAND…`` (`run`) mounts the SquashFS files in ``$GIPFEL_MOUNTS`` and runs podman with
them, in its own namespaces, in which a rootless podman works as under ``podman unshare``.
"""

import os
import posixpath
import pwd
import sys

from ... import namespaces
from ...namespaces import NEW_MOUNT, NEW_PID, NEW_USER, SandboxError, unshare
from .command import run_podman
from .plan import read_json
from .rootfs import read_bytes
from .squashfs import SquashfsServer
from .supervise import block_signals, forward_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .plan import ContainerPlan, PlannedMount

_SUBORDINATE_FIX = (
    "Ask for entries in /etc/subuid and /etc/subgid, and for newuidmap (Debian package uidmap)."
)
_IDMAP_SECONDS = 30
#: podman mounts these itself, so only podman can mount something below them.
_PODMAN_MOUNTS = ("/dev", "/proc", "/sys")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the host's, which processes of a job share
#: Variables that podman and its helpers read themselves: they must not get the container's values.
_PODMAN_VARIABLES = frozenset(
    (
        *("PATH", "HOME", "TMPDIR", "NOTIFY_SOCKET", "DBUS_SESSION_BUS_ADDRESS"),
        # Of Go's runtime. Source: package runtime, "Environment Variables".
        *("GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOROOT", "GOTRACEBACK", "GOCOVERDIR"),
    )
)
_PODMAN_PREFIXES = (
    *("XDG_", "LD_", "LISTEN_", "CONTAINER", "_CONTAINER", "STORAGE_", "PODMAN_", "BUILDAH_"),
    *("REGISTRY_", "SSL_CERT_"),
)
#: The environment variable with the mounts.
VARIABLE = "GIPFEL_MOUNTS"
_FAILED = 125
_SIGTERM = 15


def run() -> int:
    """Mount the files and run podman; return the command's exit status, or 125 with the reason on stderr."""
    program, mounts = read_json(os.environ.pop(VARIABLE))
    ids = os.geteuid(), os.getegid()
    servers: list[SquashfsServer] = []
    try:
        block_signals()
        enter_with_subordinate_ids(processes=False)
        namespaces.mount("none", "/", flags=namespaces.RECURSIVE | namespaces.SLAVE)
        for source, target in mounts:
            os.makedirs(target, mode=0o700, exist_ok=True)
            server = SquashfsServer(program, source, target, allow_other=True)
            servers.append(server)
            server.wait()
        return run_podman(sys.argv[2:], dict(os.environ) | (_rootless_variables(ids) if ids[0] else {}))
    except (SandboxError, OSError) as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return _FAILED
    finally:
        for server in servers:
            forward_to(server.process)(_SIGTERM)


def mounts_to_json(program: str, mounts: "Sequence[tuple[str, str]]") -> str:
    """Return squashfuse's path and the mounts, pairs of a file and a directory to create, as JSON."""
    import json

    return json.dumps([program, mounts], separators=(",", ":"))


def mount_into_root(root: str, mounts: "Sequence[PlannedMount]", hidden: str) -> "list[PlannedMount]":
    """Mount everything into a root; return the mounts that only podman can make.

    Parameters
    ----------
    hidden
        A directory of the host, without links, that no mount may expose: it holds the container's layers.

    Raises
    ------
    SandboxError
        A mount fails.
    """
    flags = namespaces.NO_SUID | namespaces.NO_DEV
    temporary = f"{root}/tmp"  # noqa: S108 - the container's own, in memory
    namespaces.mount(
        "tmpfs",
        temporary,
        "tmpfs",
        flags=flags,
        options="mode=1777",
        label="The directory for temporary files",
    )
    podman_mounts = []
    for mount in mounts:
        if any(
            mount.destination == path or mount.destination.startswith(f"{path}/") for path in _PODMAN_MOUNTS
        ):
            podman_mounts.append(mount)
            continue
        target = root + mount.destination
        if not os.path.exists(target):
            os.makedirs(target) if os.path.isdir(mount.source) else _make_file(target)
        bound = namespaces.BIND | namespaces.RECURSIVE
        namespaces.mount(mount.source, target, flags=bound, label=f"The mount {mount.source}")
        source = os.path.realpath(mount.source)
        if hidden.startswith(f"{source.rstrip('/')}/"):
            inside = posixpath.join(target, posixpath.relpath(hidden, source))
            namespaces.mount("tmpfs", inside, "tmpfs", flags=flags, options="mode=0700")
        if mount.read_only:
            namespaces.make_read_only(target)
    return podman_mounts


def podman_argv(
    plan: "ContainerPlan",
    root: str,
    folder: str,
    *,
    podman_mounts: "Sequence[PlannedMount]",
    ids: tuple[int, int],
    workdir: str,
    environment: "Mapping[str, str]",
    podman_variables: "Mapping[str, str]",
) -> list[str]:
    """Return the argv that runs a command in a root, without an image store.

    Parameters
    ----------
    folder
        An empty directory for podman's own files.
    podman_mounts
        The mounts that `mount_into_root` returned.
    podman_variables
        podman's own environment, from which it reads all values that are not in the argv.
    """
    words = [plan.program, *(f"--{name}={folder}/{name}" for name in ("root", "runroot", "tmpdir"))]
    words += ["--storage-driver=vfs", "--events-backend=none", "--log-level=error", "run", "--rm"]
    words += ["--interactive", "--log-driver=none", "--unsetenv-all", "--passwd=false", "--no-hosts"]
    # As much of the host as possible; the sandbox has its own PID namespace already.
    words += ["--network=host", "--pid=host", "--uts=host", "--ulimit=host"]
    words += ["--ipc=host"] if os.path.isdir("/dev/mqueue") else []
    if os.geteuid() == 0 and ids != (0, 0):
        words.append("--userns=keep-id")
    words += [] if plan.writable else ["--read-only", "--read-only-tmpfs=false"]
    words += ["--tty"] if os.isatty(0) and os.isatty(1) else []
    words += _devices(plan, podman_mounts)
    words += [word for mount in podman_mounts for word in ("--mount", _mount(mount))]
    for name, value in environment.items():
        words += ["--env", f"{name}={value}" if podman_variables.get(name) != value else name]
    return [*words, f"--workdir={workdir or '/'}", "--rootfs", root]


def podman_environment(
    host: "Mapping[str, str]", container: "Mapping[str, str]", folder: str, ids: tuple[int, int]
) -> dict[str, str]:
    """Return podman's environment: variables that podman reads from the host, others from the container."""
    environment = {name: value for name, value in host.items() if is_read_by_podman(name)}
    environment |= {name: value for name, value in container.items() if not is_read_by_podman(name)}
    environment["XDG_RUNTIME_DIR"] = folder
    return environment | (_rootless_variables(ids) if ids != (0, 0) else {})


def _rootless_variables(ids: tuple[int, int]) -> dict[str, str]:
    """Return variables as of "podman unshare", so that podman does not create another user namespace."""
    return {
        "_CONTAINERS_USERNS_CONFIGURED": "done",
        "_CONTAINERS_ROOTLESS_UID": str(ids[0]),
        "_CONTAINERS_ROOTLESS_GID": str(ids[1]),
    }


def is_read_by_podman(name: str) -> bool:
    """Return whether podman, or a program that it starts, reads a variable itself."""
    return name in _PODMAN_VARIABLES or name.startswith(_PODMAN_PREFIXES)


def _devices(plan: "ContainerPlan", podman_mounts: "Sequence[PlannedMount]") -> list[str]:
    if plan.devices is None:
        return ["--volume=/dev:/dev:rslave"]
    words = [f"--device={device.source}:{device.destination}" for device in plan.devices]
    if not any(mount.destination == _SHARED_MEMORY for mount in podman_mounts) and os.path.isdir(
        _SHARED_MEMORY
    ):
        words.append(f"--volume={_SHARED_MEMORY}:{_SHARED_MEMORY}")
    return words


def _mount(mount: "PlannedMount") -> str:
    if any(character in path for path in (mount.source, mount.destination) for character in ',"'):
        raise SandboxError(
            f"podman can't mount {mount.source} at {mount.destination}: the path has a comma or a quote."
        )
    fields = ["type=bind", f"source={mount.source}", f"destination={mount.destination}"]
    return ",".join([*fields, *(["ro"] if mount.read_only else [])])


def _make_file(target: str) -> None:
    os.makedirs(posixpath.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o666))


def enter_with_subordinate_ids(*, processes: bool) -> None:
    """Enter a mount namespace and a user namespace where the user is root and has subordinate ids.

    Parameters
    ----------
    processes
        Also create a PID namespace for children.

    Raises
    ------
    SandboxError
        The user has no subordinate ids, or the machine refuses.
    """
    namespaces = NEW_MOUNT | (NEW_PID if processes else 0)
    if os.geteuid() == 0:
        unshare(namespaces)
        return
    user, group = os.geteuid(), os.getegid()
    maps: dict[str, tuple[str, ...]] = {
        "newuidmap": ("0", str(user), "1", "1", *_range("/etc/subuid", user)),
        "newgidmap": ("0", str(group), "1", "1", *_range("/etc/subgid", user)),
    }
    reader, writer = os.pipe()
    me = os.getpid()
    # The id maps must be written from outside the namespace, by setuid programs.
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(writer)
            if os.read(reader, 1):
                status = _write_maps(me, maps)
        finally:
            os._exit(status)
    os.close(reader)
    unshare(NEW_USER | namespaces)
    os.write(writer, b".")
    os.close(writer)
    if os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]):
        raise SandboxError(f"newuidmap could not map your subordinate ids. {_SUBORDINATE_FIX}")


def _write_maps(process: int, maps: dict[str, tuple[str, ...]]) -> int:
    import subprocess

    for program, words in maps.items():
        try:
            done = subprocess.run((program, str(process), *words), timeout=_IDMAP_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return 1
        if done.returncode:
            return 1
    return 0


def _range(path: str, user: int) -> tuple[str, str]:
    """Return the first id and the size of the user's range. Source: subuid(5)."""
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = ""
    try:
        lines = read_bytes(path).decode(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        owner, *numbers = line.strip().split(":")
        if owner in {name, str(user)} and len(numbers) == 2 and all(number.isdigit() for number in numbers):
            return numbers[0], numbers[1]
    raise SandboxError(f"You have no subordinate ids in {path}. {_SUBORDINATE_FIX}")
