"""Slurm's hostlists: ``nid[001-003,7]`` is four nodes."""

import math
import re
from itertools import product

_PART = re.compile(r"[^,\[\]]+|\[[^\[\]]*\]|,")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
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
