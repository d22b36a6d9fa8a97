"""System calls that Python 3.11 does not have: namespaces, mounts, and dying with the parent process.

Every start of a container imports this module, so it avoids slow imports; it also works without ``site``.
"""

# The C part of ctypes alone: its Python part takes 2 ms to define classes that are not needed here.
import _ctypes
import posix
import select

NEW_MOUNT = 0x00020000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NETWORK = 0x40000000

BIND = 0x1000
RECURSIVE = 0x4000
SLAVE = 0x80000
NO_SUID = 0x2
NO_DEV = 0x4
NO_EXEC = 0x8

_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_MOUNT_SETATTR = 442  # the same number on every architecture
_ATTRIBUTE_READ_ONLY = 0x1
_AT_FDCWD = -100
_SET_INTERFACE_FLAGS = 0x8914
_INTERFACE_UP = 0x1
_AT_RECURSIVE = 0x8000


class SandboxError(Exception):
    """A container can't be made; the message is one line for the user."""


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "i"


class _UnsignedLong(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "L"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


def _call(name: str, *arguments: object) -> None:
    # None is this process itself, which has loaded the C library.
    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    if _Function(_ctypes.dlsym(library, name))(*arguments) != 0:
        number = _ctypes.get_errno()
        raise OSError(number, posix.strerror(number))


def unshare(flags: int) -> None:
    """Move this process into new namespaces; a new PID namespace applies to its children only.

    Parameters
    ----------
    flags
        `NEW_MOUNT`, `NEW_USER` and `NEW_PID`, as of unshare(2).

    Raises
    ------
    SandboxError
        The kernel refuses.
    """
    try:
        _call("unshare", flags)
    except OSError as error:
        raise SandboxError(f"This machine refuses namespaces ({error.strerror}).") from error


def make_read_only(path: str) -> None:
    """Make a mount and all mounts below it read-only.

    Raises
    ------
    SandboxError
        The kernel can't, because it is older than 5.12.
    """
    import ctypes

    attributes = (ctypes.c_uint64 * 4)(_ATTRIBUTE_READ_ONLY, 0, 0, 0)
    words = (
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
    )
    try:
        _call("syscall", *words, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)))
    except OSError as error:
        raise SandboxError(f"{path} can't be made read-only: {error.strerror}.") from error


def enter_namespaces() -> None:
    """Enter new user and mount namespaces as root, and a new PID namespace for the children of this process.

    Raises
    ------
    SandboxError
        The kernel refuses.
    """
    try:
        _enter(NEW_USER | NEW_MOUNT | NEW_PID, 0, 0)
    except OSError as error:
        raise SandboxError(
            f"This machine refuses user namespaces ({error.strerror}). Ask for user.max_user_namespaces > 0."
        ) from error


def _enter(flags: int, inside_user: int, inside_group: int) -> None:
    """Enter new namespaces, in which this process's user and group have these ids."""
    user, group = posix.geteuid(), posix.getegid()
    _call("unshare", flags)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside_user} {user} 1"),
        ("gid_map", f"{inside_group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_private_network() -> None:
    """Enter a new network namespace, which has a loopback interface alone, as the same user.

    The process keeps its capabilities in the namespace until it executes a program.

    Raises
    ------
    SandboxError
        The kernel refuses.
    """
    import fcntl
    import socket
    import struct

    try:
        _enter(NEW_USER | NEW_NETWORK, posix.geteuid(), posix.getegid())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SET_INTERFACE_FLAGS, struct.pack("16sh", b"lo", _INTERFACE_UP))
    except OSError as error:
        raise SandboxError(
            f"This machine refuses a network of its own ({error.strerror}). "
            "Ask for user.max_user_namespaces > 0."
        ) from error


def mount(
    source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "", label: str = ""
) -> None:
    """Mount a file system, or bind one path to another with `BIND`.

    ``kind`` is the file system's type; ``flags`` and ``options`` are those of mount(2).

    Raises
    ------
    SandboxError
        It fails; the message names ``label``, else the target.
    """
    words = (source.encode(), target.encode(), kind.encode() or None, _UnsignedLong(flags), options.encode())
    try:
        _call("mount", *words)
    except OSError as error:
        raise SandboxError(f"{label or target} can't be mounted: {error.strerror}.") from error


def die_with_parent(number: int = _SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends.

    The kernel forgets the setting when this process changes its user or group.
    """
    _call("prctl", _PR_SET_PDEATHSIG, _UnsignedLong(number), 0, 0, 0)


def is_closed(reader: int) -> bool:
    """Return whether the writing end of the pipe `reader` is closed, because its process has ended."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    return bool(poll.poll(0))
