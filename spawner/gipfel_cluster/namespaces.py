"""System calls that Python 3.11 does not have: namespaces, mounts, and dying with the parent process.

Every container starts with this module: it imports nothing that takes long, and runs without ``site``.
"""

# The part of ctypes in C, from which its other part makes classes that are not needed here, for 2 ms.
import _ctypes
import posix
import select

NEW_MOUNT = 0x00020000
NEW_USER = 0x10000000
NEW_PID = 0x20000000

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
_AT_RECURSIVE = 0x8000


class SandboxError(Exception):
    """A container that can't be made: one line for a person."""


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "i"


class _UnsignedLong(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001
    _type_ = "L"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


def _call(name: str, *arguments: object) -> None:
    # Of this process itself, which has the C library.
    process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    if _Function(_ctypes.dlsym(process, name))(*arguments) != 0:
        number = _ctypes.get_errno()
        raise OSError(number, posix.strerror(number))


def unshare(what: int) -> None:
    """Leave namespaces for new ones; one of processes is for children only.

    Raises
    ------
    SandboxError
        The machine refuses.
    """
    try:
        _call("unshare", what)
    except OSError as error:
        raise SandboxError(f"This machine refuses namespaces ({error.strerror}).") from error


def make_read_only(path: str) -> None:
    """Make a mount and those below it read-only.

    Raises
    ------
    SandboxError
        The kernel can't; it is older than 5.12.
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
    """Enter a user namespace, where one is root, with mounts and, for children, processes of its own.

    Raises
    ------
    SandboxError
        The machine refuses.
    """
    user, group = posix.geteuid(), posix.getegid()
    try:
        _call("unshare", NEW_USER | NEW_MOUNT | NEW_PID)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise SandboxError(
            f"This machine refuses user namespaces ({error.strerror}). Ask for user.max_user_namespaces > 0."
        ) from error


def mount(
    source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "", what: str = ""
) -> None:
    """Mount a file system, or bind one path to another with `BIND`.

    Raises
    ------
    SandboxError
        It fails; ``what`` names the thing in the message.
    """
    words = (source.encode(), target.encode(), kind.encode() or None, _UnsignedLong(flags), options.encode())
    try:
        _call("mount", *words)
    except OSError as error:
        raise SandboxError(f"{what or target} can't be mounted: {error.strerror}.") from error


def die_with_parent(number: int = _SIGKILL) -> None:
    """Ask for a signal when the thread that started this process ends; lost when credentials change."""
    _call("prctl", _PR_SET_PDEATHSIG, _UnsignedLong(number), 0, 0, 0)


def is_closed(reader: int) -> bool:
    """Return whether the other end of a pipe is gone, and with it the process that held it."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    return bool(poll.poll(0))
