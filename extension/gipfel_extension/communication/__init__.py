"""Communication of a job from recorded calls: bytes between ranks and nodes, and the slowest collectives."""

import fnmatch
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError, pluralize

from ..telemetry.files import read_json
from ..training.record.state import read_rank_records
from .nccl_files import MAX_BYTES, Process, add_ras, is_inspector, read_inspector_calls
from .report import CommunicationReport, communication_report
from .traffic import Traffic, read_flight_calls

__all__ = ["DUMPS", "INSPECTOR", "CommunicationReport", "communication_sources", "read_communication"]

#: Directories of a launch in which these files lie, and names of RAS's answers.
DUMPS, INSPECTOR, _RAS = "flight_recorder", "nccl-inspector*", "*ras*.json"
_MAX_FILES = 100_000
_LIMIT_S = 60.0


def read_communication(
    folder: Path, *, ras: Any = None, nodes: Mapping[int, str] | None = None, limit_s: float = _LIMIT_S
) -> CommunicationReport:
    """Return the report on a launch's directory, or on any directory with dumps or files of NCCL.

    Parameters
    ----------
    ras
        An answer of NCCL's RAS in addition to those in files.
    nodes
        Node of each rank, where the directory does not have it.
    limit_s
        Seconds after which no further dump, and no further file of the Inspector, is read.

    Raises
    ------
    GipfelError
        The directory can't be read, holds nothing to read, or dumps of several jobs.
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
            "or set NCCLINSPECTOR_DUMP_DIR.",
        )
    return communication_report(traffic, sources)


def communication_sources(folder: Path) -> tuple[Path | None, list[Path], list[Path]]:
    """Return the directory of dumps, the files of NCCL Inspector and those with answers of RAS.

    Raises
    ------
    OSError
        The directory can't be read.
    """
    entries = sorted(islice(folder.iterdir(), _MAX_FILES))
    dumps = next((each for each in entries if each.name == DUMPS and each.is_dir()), folder)
    answers = [each for each in entries if fnmatch.fnmatch(each.name, _RAS)]
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
    """Add answers of RAS, and return whether there was one."""
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
