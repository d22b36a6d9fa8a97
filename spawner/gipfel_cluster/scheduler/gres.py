"""Slurm's generic resources, as ``sinfo`` prints them: which GPUs a node has."""

import re

from ..model import Frozen

# Commas also separate the socket numbers inside "(S:0,1)".
_SEPARATOR = re.compile(r",(?![^(]*\))")
_GPU = re.compile(r"gpu(?::(?P<type>[^:()]+))??(?::(?P<count>\d+)[KMG]?)?(?:\(.*\))?", re.ASCII)


class GpuCount(Frozen):
    """So many GPUs of one type on a node; an untyped GPU has the empty type."""

    type: str = ""
    count: int


def parse_gpus(text: str) -> tuple[GpuCount, ...]:
    """GPUs in a GRES list such as ``gpu:gh200:4(S:0-3),shard:8``; other resources give none."""
    found: dict[str, int] = {}
    for part in _SEPARATOR.split(text.strip()):
        match = _GPU.fullmatch(part.strip())
        if not match:
            continue
        kind, count = match["type"] or "", int(match["count"]) if match["count"] is not None else 1
        found[kind] = found.get(kind, 0) + count
    return tuple(GpuCount(type=kind, count=count) for kind, count in found.items() if count)
