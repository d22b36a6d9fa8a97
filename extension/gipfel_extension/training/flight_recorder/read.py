"""Dumps of a folder: each rank's file, pickle or JSON, as a `Dump`; nothing of torch is needed."""

import json
import math
import re
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ...telemetry.files import read_regular
from .model import Dump, Entry
from .unpickler import MOST_BYTES, plain_value

_RANK = re.compile(r"(\d+)(?:\.json|\.pickle|\.pkl)?$")
_MOST_ENTRIES = 200_000
_MOST_FILES = 100_000
_MOST_JSON_VALUES = 5_000_000
_LONGEST_NAME = 200
#: A hundred thousand ranks, as torch writes them.
_LONGEST_RANKS = 800_000
_LARGEST = 1 << 63
_FRAMES_OF_TORCH = ("torch/", "/torch")


def read_dumps(folder: Path, *, limit_s: float = math.inf) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """Read every dump of a folder; the rank is the number at the end of a file's name.

    Parameters
    ----------
    limit_s
        Seconds after which no further file is begun.

    Returns
    -------
    tuple
        The dumps by rank, and for each file that is none its name with the reason.
    """
    end = time.monotonic() + limit_s
    dumps: dict[int, Dump] = {}
    unreadable = []
    for path in sorted(islice(folder.iterdir(), _MOST_FILES)) if folder.is_dir() else ():
        match = _RANK.search(path.name)
        if not path.is_file() or match is None or path.name.endswith(".pipe"):
            continue
        if time.monotonic() > end:
            unreadable.append(f"{path.name}: those before it took longer than {limit_s:g} s")
            continue
        try:
            dumps[int(match[1])] = read_dump(read_regular(path, MOST_BYTES), int(match[1]))
        except OSError as error:
            unreadable.append(f"{path.name}: {error.strerror}")
        except ValueError as error:
            unreadable.append(f"{path.name}: {error}")
    return tuple(dumps[rank] for rank in sorted(dumps)), tuple(unreadable)


def read_dump(content: bytes, rank: int) -> Dump:
    """One dump.

    Raises
    ------
    ValueError
        It is none.
    """
    try:
        return _dump(_json(content) if content[:1] == b"{" else plain_value(content), rank)
    except (TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"its values are not those of a flight recorder ({type(error).__name__})") from error


def _json(content: bytes) -> Any:
    # Each makes a value of a few bytes one of dozens.
    if sum(content.count(each) for each in (b",", b"[", b"{")) > _MOST_JSON_VALUES:
        raise ValueError(f"it holds more than {_MOST_JSON_VALUES} values")
    return json.loads(content)


def _dump(raw: Any, rank: int) -> Dump:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("entries"), list | tuple):
        raise ValueError("it is not a dump of a flight recorder")  # noqa: TRY004 - a file, no argument
    groups, names = {}, {}
    for uid, given in _mapping(raw.get("pg_config")).items():
        about = _mapping(given)
        name = str(uid)[:_LONGEST_NAME]
        groups[name] = _ranks(about.get("ranks"))
        names[name] = str(about.get("desc") or about.get("name") or uid)[:_LONGEST_NAME]
    entries = tuple(_entry(each) for each in raw["entries"][:_MOST_ENTRIES] if isinstance(each, Mapping))
    version = str(raw.get("version", ""))[:_LONGEST_NAME]
    return Dump(rank=rank, version=version, groups=groups, names=names, entries=entries)


def _entry(raw: Mapping[str, Any]) -> Entry:
    group = raw.get("process_group")
    uid = str(group[0]) if isinstance(group, list | tuple) and group else str(raw.get("pg_id", ""))
    p2p = bool(raw.get("is_p2p"))
    number = raw.get("p2p_seq_id") if p2p else raw.get("collective_seq_id")
    return Entry(
        group=uid[:_LONGEST_NAME],
        sequence=_number(number) or 0,
        operation=str(raw.get("profiling_name", ""))[:200],
        # Backends other than NCCL say only that they are done with it.
        state="completed" if raw.get("retired") else str(raw.get("state", ""))[:40],
        p2p=p2p,
        inputs=json.dumps(raw.get("input_sizes") or [], default=str)[:500],
        outputs=json.dumps(raw.get("output_sizes") or [], default=str)[:500],
        dtypes=json.dumps([raw.get("input_dtypes") or [], raw.get("output_dtypes") or []], default=str)[:500],
        created_ns=_number(raw.get("time_created_ns")),
        started_ns=_number(raw.get("time_discovered_started_ns")),
        completed_ns=_number(raw.get("time_discovered_completed_ns")),
        where=_where(raw.get("frames")),
    )


def _where(frames: Any) -> str:
    """The user's own line: the innermost frame that is not torch's."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        if isinstance(frame, Mapping):
            file = str(frame.get("filename", ""))
            if file and not any(each in file for each in _FRAMES_OF_TORCH):
                return f"{file}:{frame.get('line', '?')}"[:300]
    return ""


def _ranks(value: Any) -> tuple[int, ...]:
    """Ranks of a group, which torch writes as the text of a list."""
    if isinstance(value, str):
        return tuple(int(each) for each in re.findall(r"\d{1,9}", value[:_LONGEST_RANKS]))
    return tuple(each for each in value if isinstance(each, int)) if isinstance(value, list | tuple) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < _LARGEST else None
