"""Communicators in what NCCL writes: the files of its Inspector, and the JSON of its RAS subsystem.

Inspector: NVIDIA/nccl, ext-profiler/inspector/README.md, format v4.0: an object for each collective of each
rank, with ``header``, ``metadata`` and ``coll_perf``. RAS: NCCL 2.28.7 and newer, ``SET FORMAT json`` and
``VERBOSE STATUS``: counts of launched collectives, without sizes and times. Both number ranks within a
communicator, so a process (node and PID) tells which rank of the job it is.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..telemetry.files import open_regular, read_tail
from .traffic import Collectives, Group, Traffic, kind_of

_INSPECTOR, _RAS = "NCCL Inspector", "NCCL RAS"
#: Of a longer file of the Inspector, the end is read.
MAX_BYTES = 64 << 20
_MAX_RANKS, _MAX_NAME = 100_000, 100
_MOST_COMMUNICATORS = 20_000
_FIRST = 4096

Process = tuple[str, int]


@dataclass(slots=True)
class _Communicator:
    size: int = 0
    processes: dict[int, Process] = field(default_factory=dict)


class InspectorCalls:
    """Collectives in files of NCCL Inspector: `add_file` takes each, `into` adds them up."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._found: list[_Communicator] = []
        self._collectives = Collectives()
        self._times: list[int] = []

    def add_file(self, content: bytes) -> None:
        """Add the objects of one file; its first line may be cut off.

        Raises
        ------
        ValueError
            It has no object of the Inspector.
        """
        found = sum(map(self._add, _objects(content)))
        if not found:
            raise ValueError("it has no collective of NCCL Inspector")

    def _add(self, raw: Any) -> bool:
        header, meta, call = (raw.get(key) for key in ("header", "metadata", "coll_perf"))
        if not (isinstance(header, dict) and isinstance(meta, dict) and isinstance(call, dict)):
            return False
        name, rank = str(header.get("id"))[:_MAX_NAME], _whole(header.get("rank"))
        number, size = _whole(call.get("coll_sn")), _whole(call.get("coll_msg_size_bytes"))
        if rank is None or number is None or size is None or rank >= _MAX_RANKS:
            return False
        if name not in self._numbers:
            if len(self._numbers) >= _MOST_COMMUNICATORS:
                return False
            self._numbers[name] = len(self._found)
            self._found.append(_Communicator())
        place = self._numbers[name]
        own = self._found[place]
        own.size = max(own.size, min(_whole(header.get("n_ranks")) or 0, _MAX_RANKS), rank + 1)
        own.processes.setdefault(rank, _process(meta.get("hostname"), meta.get("pid")))
        if at := _whole(meta.get("dump_timestamp_us")):
            self._times.append(at * 1000)
        kind = kind_of(str(call.get("coll"))[:_MAX_NAME])
        self._collectives.add(place, number, kind, size, _positive(call.get("coll_exec_time_us")))
        return True

    def into(self, traffic: Traffic, world: Mapping[Process, int]) -> None:
        """Add the collectives of all files to the traffic; ``world`` has the ranks of known processes."""
        places = _add_groups(traffic, self._found, list(self._numbers), _INSPECTOR, world)
        self._collectives.into(traffic, places)
        traffic.saw(min(self._times, default=None), max(self._times, default=None))


def read_inspector_calls(
    files: Sequence[Path], traffic: Traffic, world: Mapping[Process, int], *, limit_s: float = math.inf
) -> int:
    """Add files of NCCL Inspector to the traffic, and return how many were read."""
    end = time.monotonic() + limit_s
    calls, read = InspectorCalls(), 0
    for number, path in enumerate(files):
        if time.monotonic() > end:
            left = len(files) - number
            traffic.problems.append(f"{left} files of NCCL Inspector: reading the others took too long")
            break
        try:
            calls.add_file(read_tail(path, MAX_BYTES))
            read += 1
        except OSError as error:
            traffic.problems.append(f"{path.name[:_MAX_NAME]}: {error.strerror}")
        except (ValueError, RecursionError, AttributeError) as error:
            traffic.problems.append(f"{path.name[:_MAX_NAME]}: {error}")
    if read:
        calls.into(traffic, world)
    return read


def add_ras(document: Any, traffic: Traffic, world: Mapping[Process, int]) -> None:
    """Add the communicators of a document of RAS to the traffic.

    Raises
    ------
    ValueError
        It is not a document of RAS.
    """
    listed = document.get("communicators") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it has no communicators of NCCL RAS")  # noqa: TRY004 - of a file
    found, names, counts = [], [], []
    for number, raw in enumerate(listed[:_MOST_COMMUNICATORS]):
        if not isinstance(raw, dict):
            continue
        own, calls = _Communicator(), dict[str, int]()
        for each in _dicts(raw.get("ranks")) + _dicts(raw.get("missing_ranks")):
            rank = _whole(each.get("rank"))
            if rank is None or rank >= _MAX_RANKS:
                continue
            own.processes[rank] = _process(each.get("host"), each.get("pid"))
            own.size = max(own.size, rank + 1)
            for name, count in _counts(each.get("collective_counts")):
                # All ranks of a communicator launch the same collectives.
                calls[kind_of(name)] = max(calls.get(kind_of(name), 0), count)
        found.append(own)
        names.append(str(raw.get("hash", number))[:_MAX_NAME])
        counts.append(calls)
    for place, calls in zip(_add_groups(traffic, found, names, _RAS, world), counts, strict=True):
        for kind, count in calls.items():
            if count:
                traffic.counts[place, kind] = count


def is_inspector(path: Path) -> bool:
    """Return whether a file begins as those of NCCL Inspector do."""
    try:
        with open_regular(path) as file:
            start = file.read(_FIRST)
    except OSError:
        return False
    return start.lstrip()[:1] == b"{" and b'"header"' in start and b'"coll' in start


def _add_groups(
    traffic: Traffic,
    found: Sequence[_Communicator],
    names: Sequence[str],
    source: str,
    world: Mapping[Process, int],
) -> list[int]:
    largest = max(found, key=lambda each: each.size, default=_Communicator())
    ranks = world or {process: rank for rank, process in largest.processes.items() if process[1]}
    places = []
    for own, name in zip(found, names, strict=True):
        members = {rank: ranks.get(process) for rank, process in own.processes.items()}
        if own.size == largest.size and not world:
            members = {rank: rank for rank in range(own.size)}
        known = tuple(sorted(each for each in members.values() if each is not None))
        for rank, process in own.processes.items():
            if (place := members.get(rank)) is not None and process[0]:
                traffic.nodes.setdefault(place, process[0])
        places.append(traffic.add_group(Group(f"communicator {name}", known, source, own.size)))
    return places


def _objects(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file, whether each is on a line of its own or on several."""
    text = content.decode(errors="replace")
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            at = text.find("\n{", at)
            at += at >= 0
            continue
        if isinstance(value, dict):
            yield value
        at = text.find("{", at)


def _process(host: Any, pid: Any) -> Process:
    return (host[:_MAX_NAME] if isinstance(host, str) else "").partition(".")[0], _whole(pid) or 0


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value[:_MAX_RANKS] if isinstance(each, dict)] if isinstance(value, list) else []


def _counts(value: Any) -> list[tuple[str, int]]:
    if not isinstance(value, dict):
        return []
    return [(str(name)[:_MAX_NAME], _whole(count) or 0) for name, count in list(value.items())[:64]]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e15 else None
