"""The commit of a working directory, and the difference of two commits, with the program ``git``.

The root of a difference comes from a record, so its repository may be hostile: git runs without its pager,
external diff programs, signature checks, file system monitor and network. `git_state` reads the working tree,
to which filters of the repository's configuration apply; it is for directories whose programs the user runs.
"""

import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from .model import Frozen, OneLine, one_line

#: Commands on a repository on a slow file system are killed, since a program waits for them to start; the
#: state is then unknown.
_LIMIT_S = 2.0
_MAX_BYTES = 16 << 20
_MAX_COMMITS, _MAX_FILES = 50, 200
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SAFE = (
    "--no-pager",
    *("-c", "core.fsmonitor=false"),
    *("-c", "log.showSignature=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "core.quotePath=false"),
)
_SAFE_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C.UTF-8",
}
_NO_PROGRAMS = ("--no-ext-diff", "--no-textconv")


class GitState(Frozen):
    """The commit that a directory had.

    ``changed_files`` is the number of tracked files with changes that are not committed, ``changes_digest``
    the SHA-256 of these changes; None if unknown.
    """

    root: str = Field(max_length=4096)
    commit: str = Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")
    branch: OneLine = Field("", max_length=255)
    changed_files: int | None = None
    changes_digest: str | None = None


class GitDifference(Frozen):
    """What leads from one commit to another; at most 50 commits and 200 files are named.

    ``reason`` says why the difference is unknown; empty if it is known.
    """

    commits: tuple[str, ...] = ()
    """Abbreviated hash and subject of the commits that only the second has, the newest first."""
    missing_commits: tuple[str, ...] = ()
    """Those that only the first has."""
    files: tuple[str, ...] = ()
    """Changed files, each after its status letter, such as ``M train.py``."""
    reason: str = ""


def git_state(directory: Path, environment: Mapping[str, str] = os.environ) -> GitState | None:
    """Return the state of the repository that contains a directory; None without git or a commit."""
    found = _git(directory, environment, "rev-parse", "--show-toplevel", "HEAD")
    lines = (found or b"").decode(errors="replace").splitlines()
    if len(lines) != 2 or not _COMMIT.fullmatch(lines[1]):
        return None
    branch = _git(directory, environment, "symbolic-ref", "--quiet", "--short", "HEAD") or b""
    changes = _git(directory, environment, "diff", *_NO_PROGRAMS, "--name-only", "-z", "HEAD")
    content = _git(directory, environment, "diff", *_NO_PROGRAMS, "HEAD") if changes else None
    return GitState(
        root=lines[0][:4096],
        commit=lines[1],
        branch=one_line(branch.decode(errors="replace"))[:255],
        changed_files=None if changes is None else changes.count(b"\0"),
        changes_digest=f"sha256:{hashlib.sha256(content).hexdigest()}" if content else None,
    )


def git_difference(
    root: Path, first: str, second: str, environment: Mapping[str, str] = os.environ
) -> GitDifference:
    """Return the difference of two commits of a repository."""
    if first == second:
        return GitDifference()
    if not (_COMMIT.fullmatch(first) and _COMMIT.fullmatch(second)):
        return GitDifference(reason="One of the runs has no commit in its record.")
    files = _git(root, environment, "diff", *_NO_PROGRAMS, "--name-status", first, second, "--")
    if files is None:
        return GitDifference(reason=one_line(f"{root} does not have both commits here, or git failed."))
    return GitDifference(
        commits=_log(root, environment, first, second),
        missing_commits=_log(root, environment, second, first),
        files=tuple(one_line(line) for line in _lines(files)[:_MAX_FILES]),
    )


def _log(root: Path, environment: Mapping[str, str], first: str, second: str) -> tuple[str, ...]:
    count = f"--max-count={_MAX_COMMITS}"
    found = _git(root, environment, "log", count, "--format=%h %s", f"{first}..{second}", "--")
    return tuple(one_line(line)[:200] for line in _lines(found or b""))


def _lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()


def _git(directory: Path, environment: Mapping[str, str], *arguments: str) -> bytes | None:
    """Return the output of git in a directory; None if it failed, took too long or printed too much."""
    own = {key: value for key, value in environment.items() if not key.startswith("GIT_")}
    try:
        process = subprocess.Popen(
            ["git", *_SAFE, "-C", str(directory), *arguments],
            env={**own, **_SAFE_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError):
        return None
    timer = threading.Timer(_LIMIT_S, process.kill)
    timer.start()
    with process:
        output = process.stdout.read(_MAX_BYTES + 1) if process.stdout else b""
        if len(output) > _MAX_BYTES:
            process.kill()
    timer.cancel()
    return output if process.returncode == 0 and len(output) <= _MAX_BYTES else None
