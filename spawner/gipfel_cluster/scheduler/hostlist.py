"""Slurm's hostlists: ``nid[001-003,7]`` is four nodes."""

import math
import re
from collections.abc import Iterable
from itertools import product

_PART = re.compile(r"[^,\[\]]+|\[[^\[\]]*\]|,")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)
_MOST = 65536


def expand_hostlist(text: str) -> tuple[str, ...]:
    """The nodes of a hostlist, in its order; brackets may occur several times in a name.

    Raises
    ------
    ValueError
        Unbalanced or empty brackets, a range that runs backwards, or more than 65536 nodes.
    """
    if "".join(_PART.findall(text)) != text:
        raise ValueError(f"{text!r} is no hostlist: its brackets don't match")
    nodes: list[str] = []
    name: list[tuple[str, ...]] = []
    for part in [*_PART.findall(text.strip()), ","]:
        if part == ",":
            if len(nodes) + math.prod(map(len, name)) > _MOST:
                raise ValueError(f"{text[:40]!r}… names more than {_MOST} nodes")
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
            raise ValueError(f"{text!r} is no hostlist: {part!r} is no range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= _MOST:
            raise ValueError(f"{text!r} is no hostlist: the range {part} can't be right")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return tuple(numbers)


def fold_hostlist(nodes: Iterable[str]) -> str:
    """The hostlist of these nodes, each once: ``nid[001-003,007]``; empty for none."""
    numbers: dict[tuple[str, int], set[int]] = {}
    others: list[str] = []
    for node in sorted(set(nodes)):
        match = _NUMBERED.fullmatch(node)
        if match:
            # By length: "7" and "007" are different nodes, while "009" and "010" may stand in one range.
            numbers.setdefault((match[1], len(match[2])), set()).add(int(match[2]))
        else:
            others.append(node)
    folded = [_fold(prefix, width, sorted(found)) for (prefix, width), found in sorted(numbers.items())]
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
