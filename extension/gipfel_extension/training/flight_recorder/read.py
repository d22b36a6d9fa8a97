"""Reader of PyTorch's flight recorder dumps, pickle or JSON, without torch.

`plain_value` reads a pickle without executing code, in bounded time and memory. Python's unpickler is not
safe here: a few bytes can make it allocate gigabytes for its memo, and a few hundred bytes can build a value
that expands to billions of elements. A dump has only numbers, texts, lists, tuples and dictionaries.
"""

import json
import math
import pickletools
import re
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ...telemetry.files import read_regular
from .analyse import Dump, Entry

MOST_BYTES = 64 << 20
#: A dump of 20 000 calls with their stacks has three million opcodes.
_MOST_OPCODES = 5_000_000
_MOST_WAITING = 500_000
#: Limit of values in a dump; values repeated by reference count each time, and eight characters count as one.
_MOST_VALUES = 10_000_000
_LARGEST = 1 << 63
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_SCALARS = frozenset(
    (
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE",
        "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
        "SHORT_BINBYTES", "BINBYTES8",
    )
)  # fmt: skip
_PUT = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_GET = frozenset(("GET", "BINGET", "LONG_BINGET"))
_IDLE = frozenset(("PROTO", "FRAME", "STOP"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_RANK = re.compile(r"(\d+)(?:\.json|\.pickle|\.pkl)?$")
_MOST_ENTRIES = 200_000
_MOST_FILES = 100_000
_MOST_JSON_VALUES = 5_000_000
_LONGEST_NAME = 200
#: Length of a hundred thousand ranks as torch writes them.
_LONGEST_RANKS = 800_000
_FRAMES_OF_TORCH = ("torch/", "/torch")


def read_dumps(folder: Path, *, limit_s: float = math.inf) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """Read every dump of a directory; the rank is the number at the end of a file's name.

    Parameters
    ----------
    limit_s
        Seconds after which no further file is read.

    Returns
    -------
    tuple
        The dumps in the order of ranks, and for each unreadable file its name with the reason.
    """
    end = time.monotonic() + limit_s
    dumps: dict[int, Dump] = {}
    unreadable = []
    for path in sorted(islice(folder.iterdir(), _MOST_FILES)) if folder.is_dir() else ():
        match = _RANK.search(path.name)
        if not path.is_file() or match is None or path.name.endswith(".pipe"):
            continue
        if time.monotonic() > end:
            unreadable.append(f"{path.name}: reading the earlier files took longer than {limit_s:g} s")
            continue
        try:
            dumps[int(match[1])] = read_dump(read_regular(path, MOST_BYTES), int(match[1]))
        except OSError as error:
            unreadable.append(f"{path.name}: {error.strerror}")
        except ValueError as error:
            unreadable.append(f"{path.name}: {error}")
    return tuple(dumps[rank] for rank in sorted(dumps)), tuple(unreadable)


def read_dump(content: bytes, rank: int) -> Dump:
    """Return the dump of one rank.

    Raises
    ------
    ValueError
        The content is not a dump.
    """
    try:
        return _dump(_json(content) if content[:1] == b"{" else plain_value(content), rank)
    except (TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"its values are not those of a flight recorder ({type(error).__name__})") from error


def plain_value(content: bytes) -> Any:
    """Return the value of a pickle of numbers, texts, lists, tuples and dictionaries.

    Raises
    ------
    ValueError
        The pickle has other values, is too large, or is not valid.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        return _Machine().run(content)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"it is not a pickle of plain values ({type(error).__name__})") from error


class _Cell:
    """A value on the stack, the number of values in it, and whether it is part of another value."""

    __slots__ = ("count", "nested", "value")

    def __init__(self, value: Any, count: int = 1) -> None:
        self.value = value
        self.count = count
        self.nested = False

    def add_parts(self, parts: list["_Cell"]) -> None:
        """Count the values that are added to this one."""
        if self.nested:
            # The outer value has already counted it. Only recursive values are built in this order.
            raise ValueError("it changes a value after its use")
        for part in parts:
            part.nested = True
            self.count += part.count
        if self.count > _MOST_VALUES:
            raise ValueError(f"it holds more than {_MOST_VALUES} values")


class _Machine:
    """Interpreter of a pickle's opcodes, with a stack and a memo."""

    def __init__(self) -> None:
        self._stack: list[_Cell] = []
        self._marks: list[int] = []
        self._memo: dict[int, _Cell] = {}

    def run(self, content: bytes) -> Any:
        """Return the value on top of the stack after all opcodes."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count > _MOST_OPCODES or len(self._stack) + len(self._marks) > _MOST_WAITING:
                raise ValueError("it is longer than a dump can be")
            self._execute(opcode.name, argument)
        return self._stack[-1].value

    def _execute(self, name: str, argument: Any) -> None:
        if name in _SCALARS:
            self._stack.append(_scalar(argument))
        elif name in _CONSTANTS:
            self._stack.append(_Cell(_CONSTANTS[name]()))
        elif name in _GET:
            self._stack.append(self._memo[argument])
        elif name in _PUT:
            self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]
        elif name == "MARK":
            self._marks.append(len(self._stack))
        elif name in _TUPLES:
            self._gather(tuple, self._pop(_TUPLES[name]))
        elif name not in _IDLE:
            self._collect(name)

    def _collect(self, name: str) -> None:
        """Execute an opcode that adds values to a container."""
        if name in {"TUPLE", "LIST"}:
            self._gather(tuple if name == "TUPLE" else list, self._above_mark())
        elif name in {"APPEND", "APPENDS"}:
            self._extend(self._pop(1) if name == "APPEND" else self._above_mark())
        elif name in {"SETITEM", "SETITEMS"}:
            self._update(self._pop(2) if name == "SETITEM" else self._above_mark())
        elif name == "DICT":
            items = self._above_mark()
            self._stack.append(_Cell({}))
            self._update(items)
        else:
            raise ValueError(f"it holds {name}, which is not a plain value")

    def _pop(self, count: int) -> list[_Cell]:
        if count > len(self._stack):
            raise IndexError(count)
        found = self._stack[-count:]
        del self._stack[-count:]
        return found

    def _above_mark(self) -> list[_Cell]:
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _gather(self, kind: type[list[Any]] | type[tuple[Any, ...]], parts: list[_Cell]) -> None:
        cell = _Cell(kind(part.value for part in parts))
        cell.add_parts(parts)
        self._stack.append(cell)

    def _extend(self, parts: list[_Cell]) -> None:
        target = self._stack[-1]
        target.add_parts(parts)
        if not isinstance(target.value, list):
            raise TypeError(type(target.value))
        target.value.extend(part.value for part in parts)

    def _update(self, parts: list[_Cell]) -> None:
        target = self._stack[-1]
        target.add_parts(parts)
        if not isinstance(target.value, dict) or len(parts) % 2:
            raise TypeError(type(target.value))
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            # Keys of other types could be crafted so that all their hashes collide.
            if not isinstance(key.value, str | int):
                raise TypeError(type(key.value))
            target.value[key.value] = value.value


def _scalar(value: Any) -> _Cell:
    if isinstance(value, str | bytes):
        return _Cell(value, 1 + len(value) // 8)
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError("it holds a number of more than 64 bits")
    return _Cell(value)


def _json(content: bytes) -> Any:
    # A value of a few bytes in JSON takes dozens of bytes in memory.
    if sum(content.count(each) for each in (b",", b"[", b"{")) > _MOST_JSON_VALUES:
        raise ValueError(f"it holds more than {_MOST_JSON_VALUES} values")
    return json.loads(content)


def _dump(raw: Any, rank: int) -> Dump:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("entries"), list | tuple):
        raise ValueError("it is not a dump of a flight recorder")  # noqa: TRY004 - it is about a file's content
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
        # Backends other than NCCL record only that a call has completed.
        state="completed" if raw.get("retired") else str(raw.get("state", ""))[:40],
        p2p=p2p,
        inputs=json.dumps(raw.get("input_sizes") or [], default=str)[:500],
        outputs=json.dumps(raw.get("output_sizes") or [], default=str)[:500],
        dtypes=json.dumps([raw.get("input_dtypes") or [], raw.get("output_dtypes") or []], default=str)[:500],
        created_ns=_number(raw.get("time_created_ns")),
        started_ns=_number(raw.get("time_discovered_started_ns")),
        completed_ns=_number(raw.get("time_discovered_completed_ns")),
        location=_user_frame(raw.get("frames")),
    )


def _user_frame(frames: Any) -> str:
    """Return the source line of the innermost frame outside of torch."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        if isinstance(frame, Mapping):
            file = str(frame.get("filename", ""))
            if file and not any(each in file for each in _FRAMES_OF_TORCH):
                return f"{file}:{frame.get('line', '?')}"[:300]
    return ""


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group, which torch writes as a list in text form."""
    if isinstance(value, str):
        return tuple(int(each) for each in re.findall(r"\d{1,9}", value[:_LONGEST_RANKS]))
    return tuple(each for each in value if isinstance(each, int)) if isinstance(value, list | tuple) else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < _LARGEST else None
