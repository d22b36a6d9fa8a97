"""Lines for the person at the terminal."""

import re

import click

_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def tell(line: str) -> None:
    """Write one line to stderr, after ``gipfel:``; whatever breaks lines or drives a terminal is a space."""
    text = _BREAKS.sub(" ", line).rstrip().encode(errors="replace").decode()
    click.echo(f"gipfel: {text}", err=True)


def examples(*lines: str) -> str:
    """Lines for the end of a command's help, kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
