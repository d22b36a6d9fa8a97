"""Launches that were started before, by whatever cell, terminal or panel: found again with their history."""

import html
import os
from collections.abc import Iterator
from typing import Any

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import Launch
from gipfel_extension.training.launches.folder import find_folder, known_folders
from gipfel_extension.training.launches.glance import glance

from .paper import figures

_MOST = 50


class LaunchList:
    """Launches, the newest first; shows itself as a table."""

    def __init__(self, found: list[Launch]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[Launch]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> Launch:
        return self._found[index]

    def __repr__(self) -> str:
        rows = [_row(each) for each in self._found]
        return "\n".join("  ".join(row) for row in rows) or "There is no launch yet."

    def _repr_html_(self) -> str:
        if not self._found:
            return "There is no launch yet: <code>%%launch</code> or <code>LaunchCell()</code> starts one."
        heads = ("launch", "state", "what", "ranks", "progress", "")
        head = "".join(f"<th>{each}</th>" for each in heads)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _row(each)) + "</tr>"
            for each in self._found
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def launches(*, everywhere: bool = True) -> LaunchList:
    """The newest launches: of all runs, or of this kernel's run alone."""
    folders = known_folders(os.environ, everywhere=everywhere)
    return LaunchList([Launch(each) for each in reversed(folders[-_MOST:])])


def launch_of(which: int | str = "") -> Launch:
    """A launch by its number here, ``RUN/N`` or its folder; the newest one where nothing is said.

    Raises
    ------
    GipfelError
        There is none.
    """
    if which == "":
        known = known_folders(os.environ, everywhere=True)
        if known:
            return Launch.open(known[-1])
    return Launch.open(find_folder(str(which), os.environ))


def _row(launch: Launch) -> tuple[str, ...]:
    try:
        shown: dict[str, Any] = glance(launch)
    except GipfelError as error:
        return (launch.folder.name, "unreadable", "", "", "", str(error))
    return (
        shown["id"],
        shown["word"],
        shown["title"],
        str(shown["ranks"]),
        " · ".join(figures(shown)),
        shown["says"],
    )
