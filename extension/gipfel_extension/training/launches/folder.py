"""Where launches are: ``<run>/launches/<n>``, or ``$GIPFEL_RUNS/launches/<n>`` outside of jobs."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import runs_root

LAUNCHES = "launches"
_MOST = 100_000


def launches_folder(environment: Mapping[str, str]) -> Path:
    """The folder of the launches of the run that this process is in, else of this user."""
    run = environment.get("GIPFEL_RUN")
    return (Path(run) if run else runs_root(dict(environment))) / LAUNCHES


def new_folder(parent: Path) -> Path:
    """Make the next launch's folder, for its owner alone.

    Raises
    ------
    GipfelError
        It can't be made.
    """
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
            f"The launch's folder can't be made in {parent}: {error.strerror}.",
            "Make room there, or set GIPFEL_RUNS to another folder.",
        ) from error
    raise GipfelError(f"There are {_MOST} launches in {parent}.", "Remove old ones.")


def known_folders(environment: Mapping[str, str], *, everywhere: bool = False) -> tuple[Path, ...]:
    """Folders of launches, the newest last: of this run, else of no run; or of all runs."""
    parents = [launches_folder(environment)]
    if everywhere:
        root = runs_root(dict(environment))
        parents += [root / LAUNCHES, *root.glob(f"*/{LAUNCHES}")]
    found: dict[Path, float] = {}
    for parent in parents:
        for number in _numbers(parent):
            folder = parent / str(number)
            # Who lists them says why one can't be read: a pipe or a folder under a name is one reason more.
            with contextlib.suppress(OSError, RuntimeError):
                (folder / "state.json").lstat()
                found[folder.resolve()] = _changed(folder / "spec.json")
    return tuple(sorted(found, key=lambda each: (found[each], int(each.name))))


def find_folder(word: str, environment: Mapping[str, str]) -> Path:
    """A launch's folder by its number here, ``RUN/N``, or its path; the last one for an empty word.

    Raises
    ------
    GipfelError
        There is none.
    """
    if not word:
        known = known_folders(environment)
        if known:
            return known[-1]
        raise GipfelError("There is no launch here.", "Start one with `gipfel launch -- SCRIPT`.")
    root = runs_root(dict(environment))
    run, _, number = word.rpartition("/")
    candidates = [launches_folder(environment) / word, root / LAUNCHES / word, Path(word)]
    if run:
        candidates.append(root / run / LAUNCHES / number)
    for each in candidates:
        # Longer than any path, it is no name either.
        with contextlib.suppress(OSError):
            if "\0" not in word and (each / "state.json").is_file():
                return each.resolve()
    raise GipfelError(f"There is no launch {word[:80]!r}.", "See `gipfel launch list --all`.")


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
