"""Places of workload directories: ``<run>/<kind>/<n>``, or ``$GIPFEL_RUNS/<kind>/<n>`` outside of jobs.

Each function takes the name of the kind's parent directory, such as ``launches``.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from ..model import GipfelError
from ..runs import make_private, runs_root
from .directory import SPEC, STATE

_MOST = 100_000


def parent_directory(kind: str, environment: Mapping[str, str]) -> Path:
    """Return the directory of a kind's workloads in this process's run, else of this user."""
    run = environment.get("GIPFEL_RUN")
    return (Path(run) if run else runs_root(dict(environment))) / kind


def new_directory(parent: Path) -> Path:
    """Make the next workload's directory, for its owner alone.

    Raises
    ------
    GipfelError
        It can't be made.
    """
    try:
        make_private(parent)
        number = max(_numbers(parent), default=0) + 1
        while number < _MOST:
            try:
                (parent / str(number)).mkdir(mode=0o700)
            except FileExistsError:
                number += 1
            else:
                return parent / str(number)
    except OSError as error:
        raise GipfelError(
            f"A directory can't be made in {parent}: {error.strerror}.",
            "Make room there, or set GIPFEL_RUNS to another directory.",
        ) from error
    raise GipfelError(f"There are {_MOST} directories in {parent}.", "Remove old ones.")


def known_directories(
    kind: str, environment: Mapping[str, str], *, everywhere: bool = False
) -> tuple[Path, ...]:
    """Return the directories of workloads, the newest last: of this run, else of no run; or of all runs."""
    parents = [parent_directory(kind, environment)]
    if everywhere:
        root = runs_root(dict(environment))
        parents += [root / kind, *root.glob(f"*/{kind}")]
    found: dict[Path, float] = {}
    for parent in parents:
        for number in _numbers(parent):
            folder = parent / str(number)
            # Readers report why one can't be read, such as a pipe under a file's name.
            with contextlib.suppress(OSError, RuntimeError):
                (folder / STATE).lstat()
                found[folder.resolve()] = _changed(folder / SPEC)
    return tuple(sorted(found, key=lambda each: (found[each], int(each.name))))


def find_directory(kind: str, word: str, environment: Mapping[str, str]) -> Path | None:
    """Return a workload's directory by its number here, ``RUN/N`` or path; None if there is none."""
    root = runs_root(dict(environment))
    run, _, number = word.rpartition("/")
    candidates = [parent_directory(kind, environment) / word, root / kind / word, Path(word)]
    if run:
        candidates.append(root / run / kind / number)
    for each in candidates:
        # A text that is longer than any path names none.
        with contextlib.suppress(OSError):
            if word and "\0" not in word and (each / STATE).is_file():
                return each.resolve()
    return None


def workload_id(folder: Path) -> str:
    """Return ``RUN/N``, or ``N`` of a workload outside of runs, as `find_directory` takes it."""
    run = folder.parents[1]
    return f"{run.name}/{folder.name}" if (run / "telemetry").is_dir() else folder.name


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0


def _numbers(parent: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in parent.iterdir() if each.name.isdecimal())
    except OSError:
        return []
