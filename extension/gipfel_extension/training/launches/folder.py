"""Directories of launches: ``<run>/launches/<n>``, or ``$GIPFEL_RUNS/launches/<n>`` outside of jobs."""

from collections.abc import Mapping
from pathlib import Path

from gipfel_cluster.model import GipfelError
from gipfel_cluster.workloads.places import (
    find_directory,
    known_directories,
    new_directory,
    parent_directory,
)

LAUNCHES = "launches"


def launches_folder(environment: Mapping[str, str]) -> Path:
    """Return the directory of the launches of this process's run, else of this user."""
    return parent_directory(LAUNCHES, environment)


def new_folder(environment: Mapping[str, str]) -> Path:
    """Make the next launch's directory, for its owner alone.

    Raises
    ------
    GipfelError
        It can't be made.
    """
    return new_directory(launches_folder(environment))


def known_folders(environment: Mapping[str, str], *, everywhere: bool = False) -> tuple[Path, ...]:
    """Return the directories of launches, the newest last: of this run, else of no run; or of all runs."""
    return known_directories(LAUNCHES, environment, everywhere=everywhere)


def find_folder(word: str, environment: Mapping[str, str]) -> Path:
    """Return a launch's directory by its number here, ``RUN/N`` or path; the newest for an empty text.

    Raises
    ------
    GipfelError
        There is none.
    """
    known = known_folders(environment) if not word else ()
    found = known[-1] if known else find_directory(LAUNCHES, word, environment)
    if found is not None:
        return found
    if not word:
        raise GipfelError("There is no launch here.", "Start one with `gipfel launch -- SCRIPT`.")
    raise GipfelError(f"There is no launch {word[:80]!r}.", "See `gipfel launch list --all`.")
