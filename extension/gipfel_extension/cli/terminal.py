"""Terminal output: messages on stderr, mistakes in files, examples of help texts, a table drawn in place."""

import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gipfel_cluster.definition_files import FileDiagnostic


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
        visible = [line[: size.columns - 1] for line in lines[: max(1, size.lines - 1)]]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        # Clears each line to its end, and the rest of a longer previous table.
        sys.stderr.write(up + "".join(f"{line}\x1b[K\n" for line in visible) + "\x1b[J")
        sys.stderr.flush()
        self._drawn = len(visible)


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


def examples(*lines: str) -> str:
    """Return the examples for the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


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
