"""Terminal output: messages on stderr, examples of help texts, a table drawn in place, logs.

What comes from files is printed without control sequences.
"""

import functools
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TextIO

import click

from gipfel_cluster.messages import GipfelError

if TYPE_CHECKING:
    from gipfel_cluster.definition_files import FileDiagnostic
    from gipfel_cluster.workloads.logs import Cursor, LogFiles, LogLine, LogPage

_P = ParamSpec("_P")
PATH = click.Path(path_type=Path)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)
# Escape sequences that control the terminal: CSI, OSC and other strings, and the rest.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|[\x1b\x9d][\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f]")
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
#: Exit status of a command that the user interrupted, and of one that can't read what it was given.
INTERRUPTED, UNREADABLE = 130, 2
_PAUSE_S = 0.5
#: Maximum characters of a title or reason in a row of a list.
_MAX_CHARACTERS = 120


class LiveTable:
    """Lines on stderr that are redrawn in place, if it is a terminal."""

    def __init__(self) -> None:
        self._drawn = 0

    @staticmethod
    def is_supported() -> bool:
        """Return whether stderr is a terminal."""
        return sys.stderr.isatty()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines, cut to the size of the terminal."""
        size = shutil.get_terminal_size()
        # Lines that scroll out of the terminal can't be redrawn; colored ones are made for its width.
        visible = [
            line if "\x1b" in line else line[: size.columns - 1] for line in lines[: max(1, size.lines - 1)]
        ]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        # Clear each line to its end, and the rest of a longer previous table.
        sys.stderr.write(up + "".join(f"{line}\x1b[K\n" for line in visible) + "\x1b[J")
        sys.stderr.flush()
        self._drawn = len(visible)


def progress_bar(done: float, total: float) -> str:
    """Return a bar of what is done, and its percentage."""
    share = min(1.0, done / total) if total else 1.0
    filled = round(share * _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {100 * share:3.0f} %"


#: Width of a bar in characters.
_BAR = 24
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def in_notebook_cell() -> bool:
    """Return whether a notebook's ``!`` started this command: its stderr is drawn there like an error.

    Where stdout is a pipe, a program reads it: its format stays that of a shell.
    """
    return "JPY_PARENT_PID" in os.environ and sys.stdout.isatty()


def report_line(line: str, *, progress: bool = False) -> None:
    """Write one line to stderr, with the prefix ``gipfel:`` and without control characters.

    Where a notebook's ``!`` started this command, progress is written to stdout.
    """
    text = _BREAKS.sub(" ", line).rstrip().encode(errors="replace").decode()
    click.echo(f"gipfel: {text}", err=not (progress and in_notebook_cell()))


def current_directory() -> Path:
    """Return the working directory.

    Raises
    ------
    GipfelError
        It was removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise GipfelError("The working directory no longer exists.", "Change to another one.") from error


def can_write(text: str, stream: TextIO | None) -> bool:
    """Return whether a stream's encoding has all characters of a text."""
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def examples(*lines: str) -> str:
    """Return the examples for the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def exit_2_if_unreadable(command: Callable[_P, int]) -> Callable[_P, int]:
    """Wrap a command: if what it was given can't be read, print the problem and return exit status 2."""

    @functools.wraps(command)
    def run(*arguments: _P.args, **options: _P.kwargs) -> int:
        try:
            return command(*arguments, **options)
        except GipfelError as error:
            report_line(str(error))
            return UNREADABLE

    return run


def print_json(document: object) -> int:
    """Print a document as JSON on stdout, and return exit status 0."""
    click.echo(json.dumps(document))
    return 0


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        click.echo(line)


def report_lines(lines: Iterable[str]) -> None:
    """Write lines to stderr, as `report_line` does."""
    for line in lines:
        report_line(line)


def report_checked(
    checked: Sequence[tuple[Path, Any, tuple["FileDiagnostic", ...]]], *, as_document: bool
) -> int:
    """Print the mistakes of files, or that each can be used; return the exit status.

    Parameters
    ----------
    checked
        Each file with what it defines, None if it can't be used, and its mistakes.
    """
    if as_document:
        document = [
            {
                "file": str(path),
                "valid": found is not None,
                "problems": [each.model_dump() for each in problems],
            }
            for path, found, problems in checked
        ]
        click.echo(json.dumps(document))
    else:
        for path, found, problems in checked:
            for each in problems:
                click.echo(f"{each}\n  {each.fix}")
            if found is not None:
                click.echo(f"{path}: can be used.")
    return 0 if all(found is not None for _, found, _ in checked) else 1


def table_lines(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return rows as lines of aligned columns; those with an index in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


class Status(NamedTuple):
    """State of a workload that is followed: one line about it, and its outcome if it has ended."""

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


def replace_unprintable(text: str) -> str:
    """Return a text in which a question mark replaces each character that can't be printed."""
    return "".join(each if each.isprintable() else "?" for each in text)


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


def print_logs(
    logs: "LogFiles",
    ranks: tuple[int, ...],
    last: int | None,
    max_bytes: int,
    follow: "Callable[[Cursor | None], int] | None",
) -> int:
    """Print the present content of a log, or its last lines only.

    Parameters
    ----------
    max_bytes
        Bytes of each rank to read at a time when the whole log is printed.
    follow
        Prints the log from a cursor until its workload ends; None to end at the present end.
    """
    from gipfel_cluster.workloads.logs import last_lines, read_logs  # noqa: PLC0415 - pydantic

    cursor = None
    if last is not None:
        lines, cursor = last_lines(logs, last, ranks=ranks)
        for line in lines:
            print_line(line)
    if follow is not None:
        return follow(cursor)
    more = last is None
    while more:
        page = read_logs(logs, cursor, ranks=ranks, max_bytes=max_bytes)
        cursor, more = page.cursor, page.more
        for line in page.lines:
            print_line(line)
    return 0


def stop_and_wait(
    name: str, stop: Callable[[], object] | None, wait: Callable[[], bool], *, note: str
) -> int:
    """Stop a workload, and report whether it has ended; return the exit status.

    Parameters
    ----------
    stop
        Requests its end; None if it has ended already.
    wait
        Waits for its end, and returns whether it has ended.
    note
        What becomes of processes that ignore the request.
    """
    if stop is None:
        report_line(f"{name} has ended already.")
        return 0
    stop()
    report_line(f"{name} is stopping; {note}")
    ended = wait()
    report_line(f"{name} is stopped." if ended else f"{name} has not ended yet. See `gipfel ps`.")
    return 0 if ended else 1


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
            # Read the state before the page, so that the page after the end is complete.
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
        return INTERRUPTED
