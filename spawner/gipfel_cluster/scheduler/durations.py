"""Slurm's time limits: text to seconds and back."""

import re

_DAYS = re.compile(r"(\d{1,5})-(\d{1,3})(?::(\d{1,3})(?::(\d{1,3}))?)?", re.ASCII)
_CLOCK = re.compile(r"(\d{1,6})(?::(\d{1,3})(?::(\d{1,3}))?)?", re.ASCII)


def parse_duration(text: str) -> int | None:
    """Seconds of a time limit as Slurm reads it; None for ``UNLIMITED`` and ``INFINITE``.

    The forms are ``MM``, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM`` and ``D-HH:MM:SS``.

    Raises
    ------
    ValueError
        The text has none of these forms.

    Source: the manual page of sbatch, ``--time``.
    """
    word = text.strip()
    if word.upper() in {"UNLIMITED", "INFINITE"}:
        return None
    if match := _DAYS.fullmatch(word):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match := _CLOCK.fullmatch(word):
        first, second, third = match.groups()
        if third is not None:
            return (int(first) * 60 + int(second)) * 60 + int(third)
        return int(first) * 60 + int(second or 0)
    raise ValueError(f"{text!r} is no time limit; write it as 30 (minutes), 2:00:00 or 1-12:00:00")


def format_duration(seconds: int | None) -> str:
    """A time limit as Slurm prints it: ``[D-]HH:MM:SS``, or ``UNLIMITED`` for None."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock
