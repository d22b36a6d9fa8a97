"""The commit of a working directory, and the difference of two commits, with the program ``git``.

`git_difference` gets the repository's path from a run's record, so the repository may be hostile: git runs
without its pager, external diff programs, signature checks, file system monitor and network. `git_state`
reads the working tree, for which git runs the filters in the repository's configuration: call it only for
directories whose programs the user runs anyway.
"""

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import Field

from ..model import Frozen, OneLine, one_line
from ..process.tree import read_output

#: Seconds for all git commands of one call. On a slow file system they are killed after this time, since the
#: start of the user's program waits for them; the state is then unknown.
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
    """The commit that is checked out in a directory, and the changes that are not committed.

    ``root`` is the top directory of the repository; ``branch`` is empty if none is checked out.
    ``changed_files`` is the number of tracked files with changes; None if unknown. ``changes_digest`` is
    ``sha256:`` and the hash of their diff; None if there are no changes, or if it is unknown.
    """

    root: str = Field(max_length=4096)
    commit: str = Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")
    branch: OneLine = Field("", max_length=255)
    changed_files: int | None = None
    changes_digest: str | None = None


class GitDifference(Frozen):
    """Commits and files between two commits; at most 50 commits and 200 files are named.

    ``reason`` says why the difference is unknown; empty if it is known.
    """

    commits: tuple[str, ...] = ()
    """Abbreviated hash and subject of the commits that only the second has, the newest first."""
    missing_commits: tuple[str, ...] = ()
    """The same of the commits that only the first has."""
    files: tuple[str, ...] = ()
    """Changed files, each after its status letter, such as ``M train.py``."""
    reason: str = ""


def git_state(directory: Path, environment: Mapping[str, str] = os.environ) -> GitState | None:
    """Return the state of the repository that contains a directory; None without git or a commit."""
    git = _commands(directory, environment)
    found = git("rev-parse", "--show-toplevel", "HEAD")
    lines = (found or b"").decode(errors="replace").splitlines()
    if len(lines) != 2 or not _COMMIT.fullmatch(lines[1]):
        return None
    branch = git("symbolic-ref", "--quiet", "--short", "HEAD") or b""
    changes = git("diff", *_NO_PROGRAMS, "--name-only", "-z", "HEAD")
    content = git("diff", *_NO_PROGRAMS, "HEAD") if changes else None
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
    """Return the difference between two commits of a repository, given by their full hashes."""
    if first == second:
        return GitDifference()
    if not (_COMMIT.fullmatch(first) and _COMMIT.fullmatch(second)):
        return GitDifference(reason="One of the runs has no commit in its record.")
    git = _commands(root, environment)
    files = git("diff", *_NO_PROGRAMS, "--name-status", first, second, "--")
    if files is None:
        return GitDifference(reason=one_line(f"{root} does not have both commits here, or git failed."))
    return GitDifference(
        commits=_log(git, first, second),
        missing_commits=_log(git, second, first),
        files=tuple(one_line(line) for line in _lines(files)[:_MAX_FILES]),
    )


def _commands(directory: Path, environment: Mapping[str, str]) -> Callable[..., bytes | None]:
    """Return `_git` for a directory, with one deadline for all of its calls."""
    return partial(_git, directory, environment, deadline=time.monotonic() + _LIMIT_S)


def _log(git: Callable[..., bytes | None], first: str, second: str) -> tuple[str, ...]:
    count = f"--max-count={_MAX_COMMITS}"
    found = git("log", count, "--format=%h %s", f"{first}..{second}", "--")
    return tuple(one_line(line)[:200] for line in _lines(found or b""))


def _lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()


def _git(directory: Path, environment: Mapping[str, str], *arguments: str, deadline: float) -> bytes | None:
    """Return the output of git in a directory; None if it failed, took too long or printed too much.

    Parameters
    ----------
    deadline
        Time on the monotonic clock, in seconds, at which git is killed.
    """
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
    output = read_output(process, _MAX_BYTES, deadline)
    return output if process.returncode == 0 and len(output) <= _MAX_BYTES else None
