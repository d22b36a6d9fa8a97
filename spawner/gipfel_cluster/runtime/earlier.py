"""Earlier forms of a runtime, folders or files: kept beside the new one for those who still run from them."""

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

# A server on another node, or another user's, can't be seen from here; it has ended by then.
_KEPT_SECONDS = 14 * 86400.0


def set_aside(folder: Path) -> Path:
    """Rename a folder or file to an earlier one of itself; return that. Mounts and open files follow."""
    # When it was replaced is in the name, since the times of a folder are those of its content.
    aside = folder.with_name(f".{folder.name}.old-{int(time.time()):x}-{secrets.token_hex(8)}")
    folder.rename(aside)
    return aside


def remove_unused(
    folder: Path, *, processes: Path = Path("/proc"), kept_seconds: float = _KEPT_SECONDS
) -> tuple[Path, ...]:
    """Remove the earlier trees of a folder that nobody can be using any more; return those that stay.

    A tree goes some time after it was replaced, usually 14 days, unless a process that can be seen here runs
    from it or has it mounted.

    Parameters
    ----------
    processes
        Where the kernel lists its processes.
    kept_seconds
        How long a tree stays for those who can't be seen; 0 where only this user of this machine runs it.
    """
    earlier = dict(_earlier(folder))
    oldest = time.time() - kept_seconds
    due = {path.name: path for path, replaced in earlier.items() if replaced < oldest}
    for path in set(due.values()) - {due[name] for name in _in_use(frozenset(due), processes)}:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return tuple(path for path in earlier if path.exists())


def _earlier(folder: Path) -> Iterator[tuple[Path, float]]:
    named = re.compile(re.escape(f".{folder.name}.old-") + "([0-9a-f]{1,12})-[0-9a-f]{16}")
    for path in sorted(folder.parent.iterdir()):
        match = named.fullmatch(path.name)
        if match:
            yield path, float(int(match[1], 16))


def _in_use(names: frozenset[str], processes: Path) -> set[str]:
    if not names:
        return set()
    # A mount's source, a mapped file and a program follow the rename. The random end of the name is enough to
    # find it, and stays the same where a mount shows only a part of the path or blanks are written as octal.
    tails = {name.rpartition("-")[2].encode(): name for name in names}
    used: set[str] = set()
    for process in processes.iterdir():
        if process.name.isdigit():
            seen = _seen(process)
            used |= {name for tail, name in tails.items() if tail in seen}
    return used


def _seen(process: Path) -> bytes:
    """Every path that a process is known to use, as far as this user may look."""
    seen = b""
    for name in ("mountinfo", "maps"):
        try:
            seen += (process / name).read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
    links = [process / name for name in ("exe", "cwd", "root")]
    with contextlib.suppress(OSError):
        # What serves a mounted file holds it open and no more: nothing of it is in any list of mounts.
        links += (process / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            seen += b"\n" + os.fsencode(link.readlink())
    return seen
