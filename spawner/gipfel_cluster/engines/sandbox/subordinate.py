"""A user namespace with the user's subordinate ids, as rootless containers with several users need it."""

import os
import pwd

from .namespaces import NEW_MOUNT, NEW_PID, NEW_USER, SandboxError, unshare
from .rootfs import read_bytes

_HOW = "Ask for entries in /etc/subuid and /etc/subgid, and for newuidmap (Debian package uidmap)."
_SECONDS = 30


def enter_with_subordinate_ids(*, processes: bool) -> None:
    """Enter a user namespace where the user is root and has subordinate ids beside, with mounts of its own.

    Parameters
    ----------
    processes
        Also a namespace of processes, for children.

    Raises
    ------
    SandboxError
        The user has no such ids, or the machine refuses.
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
    # The maps are written from outside, by programs that may do so.
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
        raise SandboxError(f"newuidmap could not give you your subordinate ids. {_HOW}")


def _write_maps(process: int, maps: dict[str, tuple[str, ...]]) -> int:
    import subprocess

    for program, words in maps.items():
        try:
            done = subprocess.run((program, str(process), *words), timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return 1
        if done.returncode:
            return 1
    return 0


def _range(path: str, user: int) -> tuple[str, str]:
    """First id and count of the user's range. Source: subuid(5)."""
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
    raise SandboxError(f"You have no ids of your own in {path}. {_HOW}")
