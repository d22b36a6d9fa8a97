"""The root of a container: an image below, and above it a layer of memory for everything that is missing.

The host's GPU driver goes where the image's loader looks. ``ldconfig`` is not run: a library in a directory
that the loader searches anyway is found by its name.
"""

import _stat as stat
import grp
import posix
import pwd

from ...namespaces import SandboxError
from .paths import exists, folder_of, is_file, is_folder, name_of
from .plan import PlannedMount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .plan import DriverFile

_LINKS = 40
_MOST = 4 << 20  # bytes: a hostile image's table of users must not fill the memory
_LONGEST_NAME = 32
#: In the order in which they are tried; the first that holds the C library is one that the loader searches.
_LIBRARY_FOLDERS = (
    "/usr/lib/{0}-linux-gnu",
    "/lib/{0}-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)
_C_LIBRARY = "libc.so.6"
_DRIVER_SWITCH = "NVIDIA_VISIBLE_DEVICES"
_DRIVER_OFF = frozenset(("", "void"))


class Layers:
    """The directories ``lower`` (the image) and ``upper`` (ours), before they are one.

    Mount points are made above, since the directories of an unpacked image often belong to another user.
    """

    def __init__(self, lower: str, upper: str) -> None:
        self._lower = lower
        self._upper = upper
        #: Where links of the image lead, None for anything else; an image never changes, and may be slow.
        self._links: dict[str, str | None] = {}

    def resolve(self, path: str) -> str:
        """Follow the image's symbolic links, as if the image were the root; the result has none.

        Raises
        ------
        SandboxError
            The links lead in a circle.
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
            if links > _LINKS:
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

    def folder(self, path: str) -> str:
        """Make a directory and those above it; return its path without links.

        Raises
        ------
        SandboxError
            The image has something else there.
        """
        path = self.resolve(path)
        parts = path.strip("/").split("/") if path != "/" else []
        for end in range(1, len(parts) + 1):
            self._one_folder("/".join(parts[:end]))
        return path

    def _one_folder(self, path: str) -> None:
        mine = f"{self._upper}/{path}"
        if is_folder(mine):
            return
        mode = self._mode(path)
        if mode is not None and not stat.S_ISDIR(mode):
            raise SandboxError(f"/{path} is a file in the image, so that nothing can be mounted below it.")
        posix.mkdir(mine)
        posix.chmod(mine, 0o755 if mode is None else stat.S_IMODE(mode) | 0o700)

    def file(self, path: str) -> str:
        """Make an empty file where there is none; return its path without links.

        Raises
        ------
        SandboxError
            The image has a directory there.
        """
        path = self.resolve(path)
        mode = self._mode(path.strip("/"))
        if mode is not None and stat.S_ISDIR(mode):
            raise SandboxError(f"{path} is a directory in the image, so that no file can be mounted there.")
        self.folder(folder_of(path))
        if mode is None:
            self._write(path, b"")
        return path

    def write(self, path: str, content: bytes) -> None:
        """Write a file of our own over the image's, whatever that is."""
        folder = self.folder(folder_of(path))
        self._write(f"{folder.rstrip('/')}/{name_of(path)}", content)

    def read(self, path: str) -> str:
        """Read a file of the image as text; empty where there is none."""
        file = self._lower + self.resolve(path)
        try:
            return read_bytes(file, _MOST).decode(errors="replace") if is_file(file) else ""
        except OSError:
            return ""

    def holds(self, path: str) -> bool:
        """Return whether the image has something there."""
        return exists(self._lower + self.resolve(path))

    def is_executable(self, path: str) -> bool:
        """Return whether the image has a file there that can be executed."""
        try:
            # Not access(2), which a FUSE file system may grant in any case.
            return bool(posix.stat(self._lower + self.resolve(path)).st_mode & 0o111)
        except OSError:
            return False

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link over whatever the image has there."""
        folder = self._upper + self.folder(folder_of(path)).rstrip("/")
        mine = f"{folder}/{name_of(path)}"
        try:
            posix.unlink(mine)
        except FileNotFoundError:
            pass
        posix.symlink(target, mine)

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


def read_bytes(path: str, most: int = -1) -> bytes:
    """Read a file whole, or its beginning."""
    # Without a buffer, which asks a file system about terminals first.
    with open(path, "rb", buffering=0) as file:
        return file.read(most) or b""


def write_host_files(layers: Layers) -> None:
    """Bring the host's name resolution into the container."""
    for path in ("/etc/resolv.conf", "/etc/hosts"):
        try:
            content = read_bytes(path)
        except OSError:
            continue
        layers.write(path, content)


class Names:
    """The host's names of a user and a group: empty where it has none for the id."""

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
    layers: Layers, user: int, group: int, home: str, name: str, *, names: Names | None = None
) -> None:
    """Add the user's lines to the image's ``/etc/passwd`` and ``/etc/group``, so that the ids have names.

    Parameters
    ----------
    home
        The home directory in the container.
    name
        What to call the user if the host has no name for the id.
    names
        The host's names of the two, where they are known already.
    """
    names = names or Names(user, group)
    if names.user:
        name, shell = names.user, names.shell
    else:
        name, shell = name if _is_user_name(name) else f"user{user}", "/bin/sh"
    group_name = names.group or name
    users = _without(layers.read("/etc/passwd"), name, user)
    groups = _without(layers.read("/etc/group"), group_name, group)
    # Its number has no owner in this namespace, so that no terminal could be given to it, as sshd tries to.
    groups = _without("\n".join(groups), "tty", group)
    # A user whose shell is not there can't log in.
    shell = next((path for path in (shell, "/bin/bash", "/bin/sh") if layers.holds(path)), shell)
    home = "/" if any(character in home for character in ":\n") else home
    line = f"{name}:x:{user}:{group}::{home or '/'}:{shell}"
    layers.write("/etc/passwd", "\n".join([line, *users, ""]).encode())
    layers.write("/etc/group", "\n".join([f"{group_name}:x:{group}:", *groups, ""]).encode())


def _is_user_name(name: str) -> bool:
    letters = name.replace("-", "_").replace(".", "_")
    return (
        letters.isascii() and letters.isidentifier() and name[0] == letters[0] and len(name) <= _LONGEST_NAME
    )


def _without(table: str, name: str, number: int) -> list[str]:
    kept = []
    for line in table.splitlines():
        fields = line.split(":")
        if line and fields[0] != name and fields[2:3] != [str(number)]:
            kept.append(line)
    return kept


def driver_wanted(environment: "Mapping[str, str]") -> bool:
    """Return whether the container's variables ask for the driver. Source: NVIDIA's container toolkit."""
    return environment.get(_DRIVER_SWITCH, "all") not in _DRIVER_OFF


def place_driver(layers: "Layers", files: "Iterable[DriverFile]") -> list[PlannedMount]:
    """Make mount points and links for the driver's files; return the mounts, all of them read-only."""
    folder = ""
    mounts = []
    for file in files:
        destination = file.destination
        if not destination:
            # Without a C library nothing of the image searches; a mounted runtime is of the host's kind.
            folder = folder or _library_folder(layers) or folder_of(file.source)
            destination = f"{folder}/{name_of(file.source)}"
        at = layers.folder(destination) if is_folder(file.source) else layers.file(destination)
        mounts.append(PlannedMount(file.source, at, read_only=True))
        for link in file.links:
            layers.link(f"{folder_of(destination)}/{link}", name_of(at))
    return mounts


def _library_folder(layers: "Layers") -> str:
    machine = posix.uname().machine
    folders = (folder.format(machine) for folder in _LIBRARY_FOLDERS)
    return next((folder for folder in folders if layers.holds(f"{folder}/{_C_LIBRARY}")), "")
