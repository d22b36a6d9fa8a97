"""Time limits as Slurm and as people write them: text to seconds and back."""

import re

_DAYS = re.compile(r"(\d{1,5})-(\d{1,3})(?::(\d{1,3})(?::(\d{1,3}))?)?", re.ASCII)
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)\s*")
_UNITS = (
    ("s", "sec", "secs", "second", "seconds"),
    ("m", "min", "mins", "minute", "minutes"),
    ("h", "hr", "hrs", "hour", "hours"),
    ("d", "day", "days"),
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_SECONDS = 99_999 * 86_400
_FORMS = "write it as 30 (minutes), 2h, 90 min, 2:00:00 or 1-12:00:00"
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
    raise ValueError(f"{text!r} is not a valid time limit: {_FORMS}")


def slurm_time(text: str) -> str:
    """Return a time limit in Slurm's syntax: as it is given, or made of words such as ``2h`` or ``1 d 12 h``.

    The form's ``duration.js`` reads the same forms.

    Raises
    ------
    ValueError
        The text has neither form, or means more than 99999 days.
    """
    word = text.strip()
    try:
        parse_duration(word)
    except ValueError:
        return format_duration(_seconds_of_words(word))
    return word


def _seconds_of_words(text: str) -> int:
    total, units = 0.0, []
    rest = text.lower()
    while part := _PART.match(rest):
        unit = next((names[0] for names in _UNITS if part[2] in names), "")
        total += float(part[1]) * _SECONDS.get(unit, 0)
        units.append(unit)
        rest = rest[part.end() :]
    if rest or not units or "" in units or len(set(units)) < len(units) or total > _MOST_SECONDS:
        raise ValueError(f"{text!r} is not a valid time limit: {_FORMS}")
    return int(total + 0.5)


def format_duration(seconds: int | None) -> str:
    """A time limit as Slurm prints it: ``[D-]HH:MM:SS``, or ``UNLIMITED`` for None."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock
