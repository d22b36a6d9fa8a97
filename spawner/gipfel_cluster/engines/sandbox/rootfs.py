"""The root of a container: the image as the lower layer, and an upper layer in memory for added files.

The host's GPU driver is mounted in a directory that the image's loader searches, so that ``ldconfig`` need
not run.
"""

import _stat as stat
import grp
import posix
import pwd

from ...namespaces import SandboxError
from .paths import exists, is_directory, is_file, name_of, parent_of
from .plan import PlannedMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .plan import DriverFile

_MAX_LINKS = 40
_MAX_FILE_BYTES = 4 << 20  # a hostile image's /etc/passwd must not fill the memory
_MAX_NAME_LENGTH = 32
#: The first of these that contains the C library is a directory that the loader searches.
_LIBRARY_DIRECTORIES = (
    "/usr/lib/{0}-linux-gnu",
    "/lib/{0}-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)
_C_LIBRARY = "libc.so.6"
_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_NO_DEVICES = frozenset(("", "void"))


class Layers:
    """The directories ``lower`` (the image) and ``upper`` (added files), before the overlay is mounted.

    Mount points are created in ``upper``, since directories of an unpacked image often have another owner.
    """

    def __init__(self, lower: str, upper: str) -> None:
        self._lower = lower
        self._upper = upper
        #: Targets of the image's links, None for other files: a cache, since reading an image may be slow.
        self._links: dict[str, str | None] = {}

    def resolve(self, path: str) -> str:
        """Return a path without symbolic links, resolved with the image as the root.

        Raises
        ------
        SandboxError
            There are too many links.
        """
        todo, done, links = path.split("/")[::-1], list[str](), 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            target = self._link("/".join((*done, part)))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise SandboxError(f"{path} in the image is a circle of symbolic links.")
            if target.startswith("/"):
                done.clear()
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def _link(self, path: str) -> str | None:
        if path not in self._links:
            try:
                self._links[path] = posix.readlink(f"{self._lower}/{path}")
            except OSError:
                self._links[path] = None
        return self._links[path]

    def make_directory(self, path: str) -> str:
        """Create a directory and its parents; return its path without links.

        Raises
        ------
        SandboxError
            The image has a file there.
        """
        path = self.resolve(path)
        parts = path.strip("/").split("/") if path != "/" else []
        for end in range(1, len(parts) + 1):
            self._make_one_directory("/".join(parts[:end]))
        return path

    def _make_one_directory(self, path: str) -> None:
        target = f"{self._upper}/{path}"
        if is_directory(target):
            return
        mode = self._mode(path)
        if mode is not None and not stat.S_ISDIR(mode):
            raise SandboxError(f"/{path} is a file in the image, so that nothing can be mounted below it.")
        posix.mkdir(target)
        posix.chmod(target, 0o755 if mode is None else stat.S_IMODE(mode) | 0o700)

    def make_file(self, path: str) -> str:
        """Create an empty file unless it exists; return its path without links.

        Raises
        ------
        SandboxError
            The image has a directory there.
        """
        path = self.resolve(path)
        mode = self._mode(path.strip("/"))
        if mode is not None and stat.S_ISDIR(mode):
            raise SandboxError(f"{path} is a directory in the image, so that no file can be mounted there.")
        self.make_directory(parent_of(path))
        if mode is None:
            self._write(path, b"")
        return path

    def write(self, path: str, content: bytes) -> None:
        """Write a file to the upper layer, in place of the image's."""
        self._write(f"{self.make_directory(parent_of(path)).rstrip('/')}/{name_of(path)}", content)

    def read(self, path: str) -> str:
        """Return the text of a file of the image; empty if there is none."""
        file = self._lower + self.resolve(path)
        try:
            return read_bytes(file, _MAX_FILE_BYTES).decode(errors="replace") if is_file(file) else ""
        except OSError:
            return ""

    def contains(self, path: str) -> bool:
        """Return whether the image contains a path."""
        return exists(self._lower + self.resolve(path))

    def is_executable(self, path: str) -> bool:
        """Return whether a path of the image is executable."""
        try:
            # Not access(2), since a FUSE file system may always grant it.
            return bool(posix.stat(self._lower + self.resolve(path)).st_mode & 0o111)
        except OSError:
            return False

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link in the upper layer, in place of the image's file."""
        folder = self._upper + self.make_directory(parent_of(path)).rstrip("/")
        link = f"{folder}/{name_of(path)}"
        try:
            posix.unlink(link)
        except FileNotFoundError:
            pass
        posix.symlink(target, link)

    def _write(self, path: str, content: bytes) -> None:
        with open(self._upper + path, "wb") as file:
            file.write(content)
        posix.chmod(self._upper + path, 0o644)

    def _mode(self, path: str) -> int | None:
        for layer in (self._upper, self._lower):
            try:
                return posix.lstat(f"{layer}/{path}").st_mode
            except OSError:
                continue
        return None


def read_bytes(path: str, limit: int = -1) -> bytes:
    """Return the content of a file, or up to ``limit`` bytes of it."""
    # Unbuffered: to create a buffer, Python would first query whether the file is a terminal.
    with open(path, "rb", buffering=0) as file:
        return file.read(limit) or b""


def write_host_files(layers: Layers) -> None:
    """Copy the host's name resolution into the container."""
    for path in ("/etc/resolv.conf", "/etc/hosts"):
        try:
            content = read_bytes(path)
        except OSError:
            continue
        layers.write(path, content)


class AccountNames:
    """The host's names of a user and a group, and the user's shell; empty for unknown ids."""

    def __init__(self, user: int, group: int) -> None:
        self.user = self.shell = self.group = ""
        try:
            entry = pwd.getpwuid(user)
            self.user, self.shell = entry.pw_name, entry.pw_shell
        except KeyError:
            pass
        try:
            self.group = grp.getgrgid(group).gr_name
        except KeyError:
            pass


def write_identity(
    layers: Layers, user: int, group: int, home: str, name: str, *, names: AccountNames | None = None
) -> None:
    """Add the user's lines to the image's ``/etc/passwd`` and ``/etc/group``, so that the ids have names.

    Parameters
    ----------
    home
        The home directory in the container.
    name
        The name of the user if the host has none for the id.
    names
        The host's names of user and group, if they were looked up already.
    """
    names = names or AccountNames(user, group)
    if names.user:
        name, shell = names.user, names.shell
    else:
        name, shell = name if _is_user_name(name) else f"user{user}", "/bin/sh"
    group_name = names.group or name
    users = _without(layers.read("/etc/passwd"), name, user)
    groups = _without(layers.read("/etc/group"), group_name, group)
    # Its id is not mapped in this namespace, and sshd would fail to change a terminal's group to it.
    groups = _without("\n".join(groups), "tty", group)
    # A user whose shell does not exist can't log in.
    shell = next((path for path in (shell, "/bin/bash", "/bin/sh") if layers.contains(path)), shell)
    home = "/" if any(character in home for character in ":\n") else home
    line = f"{name}:x:{user}:{group}::{home or '/'}:{shell}"
    layers.write("/etc/passwd", "\n".join([line, *users, ""]).encode())
    layers.write("/etc/group", "\n".join([f"{group_name}:x:{group}:", *groups, ""]).encode())


def _is_user_name(name: str) -> bool:
    letters = name.replace("-", "_").replace(".", "_")
    return (
        letters.isascii()
        and letters.isidentifier()
        and name[0] == letters[0]
        and len(name) <= _MAX_NAME_LENGTH
    )


def _without(table: str, name: str, number: int) -> list[str]:
    others = []
    for line in table.splitlines():
        fields = line.split(":")
        if line and fields[0] != name and fields[2:3] != [str(number)]:
            others.append(line)
    return others


def driver_is_enabled(environment: "Mapping[str, str]") -> bool:
    """Return whether the container's variables enable the driver. Source: NVIDIA's container toolkit."""
    return environment.get(_VISIBLE_DEVICES, "all") not in _NO_DEVICES


def mount_driver_files(layers: "Layers", files: "Iterable[DriverFile]") -> list[PlannedMount]:
    """Create mount points and links for the driver's files; return the mounts, all of them read-only."""
    folder = ""
    mounts = []
    for file in files:
        destination = file.destination
        if not destination:
            # An image without a C library has no loader; a mounted runtime searches the host's directories.
            folder = folder or _library_directory(layers) or parent_of(file.source)
            destination = f"{folder}/{name_of(file.source)}"
        target = (
            layers.make_directory(destination) if is_directory(file.source) else layers.make_file(destination)
        )
        mounts.append(PlannedMount(file.source, target, read_only=True))
        for link in file.links:
            layers.link(f"{parent_of(destination)}/{link}", name_of(target))
    return mounts


def _library_directory(layers: "Layers") -> str:
    machine = posix.uname().machine
    folders = (folder.format(machine) for folder in _LIBRARY_DIRECTORIES)
    return next((folder for folder in folders if layers.contains(f"{folder}/{_C_LIBRARY}")), "")
