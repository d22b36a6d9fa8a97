"""Parse and format Slurm's notations: hostlists, time limits and generic resources. It does no I/O."""

import math
import re
from collections.abc import Iterable
from itertools import product

from ..model import Frozen

_LIST_PART = re.compile(r"[^,\[\]]+|\[[^\[\]]*\]|,")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)
_MAX_NODES = 65536
_DAYS = re.compile(r"(\d{1,5})-(\d{1,3})(?::(\d{1,3})(?::(\d{1,3}))?)?", re.ASCII)
_AMOUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)\s*")
_UNITS = (
    ("s", "sec", "secs", "second", "seconds"),
    ("m", "min", "mins", "minute", "minutes"),
    ("h", "hr", "hrs", "hour", "hours"),
    ("d", "day", "days"),
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 99_999 * 86_400
_FORMS = "write it as 30 (minutes), 2h, 90 min, 2:00:00 or 1-12:00:00"
_CLOCK = re.compile(r"(\d{1,6})(?::(\d{1,3})(?::(\d{1,3}))?)?", re.ASCII)
# Commas also separate the socket numbers inside "(S:0,1)".
_SEPARATOR = re.compile(r",(?![^(]*\))")
_GPU = re.compile(r"gpu(?::(?P<type>[^:()]+))??(?::(?P<count>\d+)[KMG]?)?(?:\(.*\))?", re.ASCII)


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the node names in a hostlist, in its order; a name may have several pairs of brackets.

    Raises
    ------
    ValueError
        Brackets are unbalanced or empty, a range is descending, or there are more than 65536 nodes.
    """
    if "".join(_LIST_PART.findall(text)) != text:
        raise ValueError(f"{text!r} is not a valid hostlist: its brackets don't match")
    nodes: list[str] = []
    name: list[tuple[str, ...]] = []
    for part in [*_LIST_PART.findall(text.strip()), ","]:
        if part == ",":
            if len(nodes) + math.prod(map(len, name)) > _MAX_NODES:
                raise ValueError(f"{text[:40]!r}… names more than {_MAX_NODES} nodes")
            if name:
                nodes += ["".join(pieces) for pieces in product(*name)]
            name = []
        elif part.startswith("["):
            name.append(_numbers(part[1:-1], text))
        else:
            name.append((part,))
    return tuple(nodes)


def _numbers(ranges: str, text: str) -> tuple[str, ...]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"{text!r} is not a valid hostlist: {part!r} is not a range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= _MAX_NODES:
            raise ValueError(f"{text!r} is not a valid hostlist: the range {part} is not valid")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return tuple(numbers)


def fold_hostlist(nodes: Iterable[str]) -> str:
    """Return the sorted hostlist of these nodes without duplicates: ``nid[001-003,007]``; empty for none."""
    numbers: dict[tuple[str, int], set[int]] = {}
    others: list[str] = []
    for node in sorted(set(nodes)):
        if match := _NUMBERED.fullmatch(node):
            # Group by length: "7" and "007" are different nodes, but "009" and "010" can be in one range.
            numbers.setdefault((match[1], len(match[2])), set()).add(int(match[2]))
        else:
            others.append(node)
    folded = [_fold(prefix, width, sorted(group)) for (prefix, width), group in sorted(numbers.items())]
    return ",".join([*folded, *others])


def _fold(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [
        str(first).zfill(width) + ("" if first == last else f"-{str(last).zfill(width)}")
        for first, last in runs
    ]
    return prefix + (words[0] if len(words) == 1 and "-" not in words[0] else f"[{','.join(words)}]")


def parse_duration(text: str) -> int | None:
    """Return the seconds of a time limit in Slurm's syntax; None for ``UNLIMITED`` and ``INFINITE``.

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
        first, second, third = (int(part or 0) for part in match.groups())
        # Two numbers are minutes and seconds.
        return first * 60 + second if match[3] is None else (first * 60 + second) * 60 + third
    raise ValueError(f"{text!r} is not a valid time limit: {_FORMS}")


def slurm_time(text: str) -> str:
    """Return a time limit in Slurm's syntax; accept this syntax, and units such as ``2h`` or ``1 d 12 h``.

    ``duration.js`` of the spawn form accepts the same forms.

    Raises
    ------
    ValueError
        The text follows neither syntax, or the time is longer than 99999 days.
    """
    word = text.strip()
    try:
        parse_duration(word)
    except ValueError:
        return format_duration(seconds_from_units(word))
    return word


def seconds_from_units(text: str) -> int:
    """Return the seconds of a time with units, such as ``2h`` or ``1 d 12 h``.

    Raises
    ------
    ValueError
        The text has another form, or the time is longer than 99999 days.
    """
    total, units = 0.0, []
    rest = text.lower()
    while part := _AMOUNT.match(rest):
        unit = next((names[0] for names in _UNITS if part[2] in names), "")
        total += float(part[1]) * _SECONDS.get(unit, 0)
        units.append(unit)
        rest = rest[part.end() :]
    if rest or not units or "" in units or len(set(units)) < len(units) or total > _MAX_SECONDS:
        raise ValueError(f"{text!r} is not a valid time limit: {_FORMS}")
    return int(total + 0.5)


def format_duration(seconds: int | None) -> str:
    """Format a time limit as Slurm prints it: ``[D-]HH:MM:SS``, or ``UNLIMITED`` for None."""
    if seconds is None:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock


class GpuCount(Frozen):
    """Number of GPUs of one type on a node; ``type`` is empty for GPUs that Slurm knows without a type."""

    type: str = ""
    count: int


def parse_gpus(text: str) -> tuple[GpuCount, ...]:
    """Parse the GPUs of a GRES list such as ``gpu:gh200:4(S:0-3),shard:8``; other resources are ignored."""
    counts: dict[str, int] = {}
    for part in _SEPARATOR.split(text.strip()):
        match = _GPU.fullmatch(part.strip())
        if not match:
            continue
        kind, count = match["type"] or "", int(match["count"]) if match["count"] is not None else 1
        counts[kind] = counts.get(kind, 0) + count
    return tuple(GpuCount(type=kind, count=count) for kind, count in counts.items() if count)
