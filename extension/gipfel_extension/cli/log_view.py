"""Logs of workloads in a terminal: safe to print, a rank before each line, followed to the end."""

import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from .terminal import report_line

if TYPE_CHECKING:
    from gipfel_cluster.workloads.logs import Cursor, LogLine, LogPage

# Escape sequences that control the terminal: CSI, OSC and other strings, and the rest.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|[\x1b\x9d][\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]")
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
_INTERRUPTED = 130
_PAUSE_S = 0.5
#: Maximum characters of a title or reason in a row of a list.
_MAX_CHARACTERS = 120


class Status(NamedTuple):
    """State of a workload that is followed: one line about it, and how it ended."""

    line: str
    ended: bool
    exit_status: int | None


def printable(text: str, *, colours: bool) -> str:
    """Return a rank's output without escape sequences that control the terminal.

    Parameters
    ----------
    colours
        Whether to keep the sequences for colours.
    """
    if text.isprintable():
        return text
    text = _SEQUENCE.sub(lambda found: found[0] if colours and _COLOUR.fullmatch(found[0]) else "", text)
    text = _CONTROL.sub("", text) if colours else _CONTROL.sub("", text).replace("\x1b", "")
    return text.encode(errors="replace").decode()


def shorten(text: str) -> str:
    """Return a text as one printable line of at most 120 characters, without colours."""
    text = printable(" ".join(text.split()), colours=False)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def print_line(line: "LogLine") -> None:
    """Print a line of a log behind its rank, in the rank's colour if stdout is a terminal."""
    prefix, colours, end = f"r{line.rank} |", sys.stdout.isatty(), ""
    if colours:
        prefix, end = click.style(prefix, fg=_COLOURS[line.rank % len(_COLOURS)]), "\x1b[0m"
    sys.stdout.write(f"{prefix} {printable(line.text, colours=colours)}{end}\n")


def print_logs(read_page: "Callable[[Cursor | None], LogPage]") -> None:
    """Print all that a log holds now."""
    cursor = None
    while True:
        page = read_page(cursor)
        cursor = page.cursor
        for line in page.lines:
            print_line(line)
        if not page.more:
            return


def follow_logs(
    read_status: Callable[[], Status],
    read_page: "Callable[[Cursor | None], LogPage]",
    cursor: "Cursor | None",
    *,
    on_interrupt: str,
) -> int:
    """Print a log until its workload ends, and each change of its state on stderr; Ctrl-C leaves it running.

    Parameters
    ----------
    cursor
        Where to begin; None for the log's beginning.
    on_interrupt
        The line that is printed after a Ctrl-C: the workload keeps running.

    Returns
    -------
    int
        The workload's exit status; 1 if it has none, 130 after a Ctrl-C.
    """
    reported = ""
    try:
        while True:
            # Before the page, so that the page after the end is complete.
            status = read_status()
            page = read_page(cursor)
            cursor = page.cursor
            for line in page.lines:
                print_line(line)
            if status.line != reported:
                reported = status.line
                report_line(reported)
            if status.ended and not page.more:
                return 1 if status.exit_status is None else status.exit_status
            if not page.more:
                time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        report_line(on_interrupt)
        return _INTERRUPTED
