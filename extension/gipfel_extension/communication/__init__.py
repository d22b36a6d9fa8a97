"""Communication of a job from recorded calls: bytes between ranks and nodes, and the slowest collectives.

`read_communication` reads the dumps of PyTorch's flight recorder (`traffic`), NCCL Inspector's files and RAS
answers. Inspector: NVIDIA/nccl, ext-profiler/inspector/README.md, format v4.0: an object for each collective
of each rank, with ``header``, ``metadata`` and ``coll_perf``. RAS: NCCL 2.28.7 and newer, ``SET FORMAT json``
and ``VERBOSE STATUS``: counts of launched collectives, without sizes and times. Both number ranks within a
communicator, so ranks of the job are identified by process (node and PID).
"""

import fnmatch
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, pluralize

from ..telemetry.files import open_regular, read_json, read_tail
from ..training.record import read_rank_records
from .report import CommunicationReport, communication_report
from .traffic import Collectives, Group, Traffic, kind_of, read_flight_calls

__all__ = [
    "DUMPS",
    "INSPECTOR",
    "MAX_BYTES",
    "CommunicationReport",
    "InspectorCalls",
    "Process",
    "add_ras",
    "communication_sources",
    "is_inspector",
    "read_communication",
    "read_inspector_calls",
]

_INSPECTOR, _RAS = "NCCL Inspector", "NCCL RAS"
#: Of a longer Inspector file, only this many bytes at its end are read.
MAX_BYTES = 64 << 20
_MAX_RANKS, _MAX_NAME = 100_000, 100
_MOST_COMMUNICATORS = 20_000
#: Bytes at the start of a file from which its format is recognized.
_FIRST = 4096

Process = tuple[str, int]


@dataclass(slots=True)
class _Communicator:
    size: int = 0
    processes: dict[int, Process] = field(default_factory=dict)


class InspectorCalls:
    """Collectives from NCCL Inspector files: call `add_file` for each file, then `into` once."""

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
            The file has no Inspector object.
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
        traffic.extend_span(min(self._times, default=None), max(self._times, default=None))


def read_inspector_calls(
    files: Sequence[Path], traffic: Traffic, world: Mapping[Process, int], *, limit_s: float = math.inf
) -> int:
    """Add NCCL Inspector files to the traffic, and return how many were read.

    After ``limit_s`` seconds no further file is read.
    """
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
    """Add the communicators of a RAS document to the traffic.

    Raises
    ------
    ValueError
        It is not a RAS document.
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
    """Return whether a file begins like an NCCL Inspector file."""
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


#: Directories of a launch with dumps and Inspector files, and names of files with RAS answers.
DUMPS, INSPECTOR, _RAS_FILES = "flight_recorder", "nccl-inspector*", "*ras*.json"
_MAX_FILES = 100_000
_LIMIT_S = 60.0


def read_communication(
    folder: Path, *, ras: Any = None, nodes: Mapping[int, str] | None = None, limit_s: float = _LIMIT_S
) -> CommunicationReport:
    """Return the report on a launch's directory, or on any directory with dumps or NCCL's files.

    Parameters
    ----------
    ras
        A RAS document, in addition to those in files.
    nodes
        Node of each rank; used where the directory does not have it.
    limit_s
        Seconds after which no further dump, and no further file of the Inspector, is read.

    Raises
    ------
    GipfelError
        The directory can't be read, has none of these files, or has dumps of several jobs.
    """
    traffic = Traffic()
    records = read_rank_records(folder)
    world: dict[Process, int] = {
        (each.node.partition(".")[0], each.pid): rank for rank, each in records.items()
    }
    traffic.nodes.update(nodes or {})
    traffic.nodes.update({rank: each.node for rank, each in records.items() if each.node})
    try:
        dumps, inspected, answers = communication_sources(folder)
        sources = []
        if dumps is not None and (count := read_flight_calls(dumps, traffic, limit_s=limit_s)):
            sources.append(f"{pluralize(count, 'dump')} of PyTorch's flight recorder")
        if inspected and (count := read_inspector_calls(inspected, traffic, world, limit_s=limit_s)):
            sources.append(f"{pluralize(count, 'file')} of NCCL Inspector")
    except OSError as error:
        raise GipfelError(
            f"{folder} can't be read: {error.strerror}.", "Name a directory with dumps or files of NCCL."
        ) from error
    if _add_answers(answers, ras, traffic, world):
        sources.append("NCCL's RAS")
    if not sources:
        why = f" ({'; '.join(traffic.problems[:3])})" if traffic.problems else ""
        raise GipfelError(
            f"{folder} holds no recorded communication{why}.",
            "Set TORCH_FR_BUFFER_SIZE=2000 and dump with `gipfel communication --now LAUNCH`, "
            "or set NCCL_INSPECTOR_DUMP_DIR.",
        )
    return communication_report(traffic, sources)


def communication_sources(folder: Path) -> tuple[Path | None, list[Path], list[Path]]:
    """Return the directory of dumps (None if there is none), the NCCL Inspector files, and the RAS files.

    Raises
    ------
    OSError
        The directory can't be read.
    """
    entries = sorted(islice(folder.iterdir(), _MAX_FILES))
    dumps = next((each for each in entries if each.name == DUMPS and each.is_dir()), folder)
    answers = [each for each in entries if fnmatch.fnmatch(each.name, _RAS_FILES)]
    places = [folder, *(each for each in entries if fnmatch.fnmatch(each.name, INSPECTOR) and each.is_dir())]
    inspected = [
        path
        for place in places
        for path in sorted(islice(place.iterdir(), _MAX_FILES))
        if is_inspector(path) and path not in answers
    ]
    others = {*inspected, *answers}
    has_dumps = dumps != folder or any(each.is_file() and each not in others for each in entries)
    return dumps if has_dumps else None, inspected, answers


def _add_answers(files: Iterable[Path], ras: Any, traffic: Traffic, world: Mapping[Process, int]) -> bool:
    """Add RAS answers to the traffic, and return whether there was one."""
    found = False
    for path in files:
        try:
            add_ras(read_json(path, MAX_BYTES), traffic, world)
            found = True
        except OSError as error:
            traffic.problems.append(f"{path.name[:200]}: {error.strerror}")
        except ValueError as error:
            traffic.problems.append(f"{path.name[:200]}: {error}")
    if ras is not None:
        try:
            add_ras(ras, traffic, world)
            found = True
        except ValueError as error:
            traffic.problems.append(f"NCCL's RAS: {error}")
    return found
