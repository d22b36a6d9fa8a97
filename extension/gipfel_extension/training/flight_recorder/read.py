"""Dumps in a directory, pickle or JSON; pickles of plain values are read without executing anything."""

import json
import math
import pickletools
import re
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from gipfel_cluster.model import GipfelError

from ...telemetry.files import read_regular
from .dump import Bundles, Dump, dump_of

MAX_BYTES = 64 << 20
#: Larger pickles are rejected; a dump of 20 000 calls with their stacks has three million opcodes.
_MAX_OPCODES = 5_000_000
_LARGEST = 1 << 63
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_STOP = ord(".")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_I32, _F64 = struct.Struct("<i"), struct.Struct(">d")
_RANK = re.compile(r"(.*?)(\d{1,7})(?:\.json|\.pickle|\.pkl)?$")
_MAX_FILES = 100_000
_MAX_JSON_VALUES = 5_000_000
_MAX_NAME = 200


def plain_value(content: bytes) -> Any:
    """Return the value of a pickle of numbers, texts, lists, tuples and dictionaries.

    Raises
    ------
    ValueError
        The pickle has other values, is too large or cut off, or is not valid.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return _Machine(content).run()
    except (IndexError, struct.error) as error:
        raise ValueError("it is cut off, or it is not a pickle") from error
    except (TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"it is not a pickle of plain values ({type(error).__name__})") from error


class _Machine:
    """Interpreter of a pickle's opcodes, with a stack and a memo."""

    __slots__ = ("content", "marks", "memo", "position", "stack")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value on top of the stack at the end."""
        content, stack, marks, memo = self.content, self.stack, self.marks, self.memo
        push = stack.append
        at = 0
        for _ in repeat(None, _MAX_OPCODES):
            code = content[at]
            at += 1
            # The most frequent opcodes come first and without a call: they are nine of ten in a dump.
            if code == 0x68:  # BINGET
                push(memo[content[at]])
                at += 1
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x5D:  # EMPTY_LIST
                push([])
            elif code == 0x65:  # APPENDS
                start = marks.pop()
                _extend(stack[start - 1] if start else None, stack[start:])
                del stack[start:]
            elif code == 0x4B:  # BININT1
                push(content[at])
                at += 1
            elif code == 0x4D:  # BININT2
                push(content[at] | content[at + 1] << 8)
                at += 2
            elif code == 0x6A:  # LONG_BINGET
                push(memo[_U32.unpack_from(content, at)[0]])
                at += 4
            elif code == _STOP:
                return stack[-1]
            else:
                self.position = at
                _OPCODES.get(code, _reject)(self)
                at = self.position
        raise ValueError("it has more opcodes than a dump can have")

    def take(self, count: int) -> bytes:
        """Return the next bytes of the file."""
        start, self.position = self.position, self.position + count
        if self.position > len(self.content):
            raise IndexError(count)
        return self.content[start : self.position]

    def number(self, form: struct.Struct) -> Any:
        """Return the next number of the file."""
        (value,) = form.unpack_from(self.content, self.position)
        self.position += form.size
        return value

    def above_mark(self) -> list[Any]:
        """Remove the values above the last mark, and return them."""
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def popped(self, count: int) -> list[Any]:
        """Remove a number of values from the stack, and return them."""
        if count > len(self.stack):
            raise IndexError(count)
        found = self.stack[-count:]
        del self.stack[-count:]
        return found


def _reject(machine: _Machine) -> None:
    code = machine.content[machine.position - 1]
    raise ValueError(f"it holds {_NAMES.get(code, hex(code))}, which is not a plain value")


def _long(machine: _Machine) -> None:
    size = machine.take(1)[0]
    value = int.from_bytes(machine.take(size), "little", signed=True)
    if not -_LARGEST <= value < _LARGEST:
        raise ValueError("it holds a number of more than 64 bits")
    machine.stack.append(value)


def _extend(target: Any, parts: list[Any]) -> None:
    if not isinstance(target, list):
        raise TypeError(type(target))
    target.extend(parts)


def _append(machine: _Machine) -> None:
    (part,) = machine.popped(1)
    _extend(machine.stack[-1], [part])


def _put(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


def _update(machine: _Machine, parts: list[Any]) -> None:
    target = machine.stack[-1]
    if not isinstance(target, dict) or len(parts) % 2:
        raise TypeError(type(target))
    keys = parts[::2]
    for key in keys:
        # Keys of other types could be crafted so that all their hashes collide, or that hashing recurses.
        if not isinstance(key, str | int):
            raise TypeError(type(key))
    target.update(zip(keys, parts[1::2], strict=True))


def _text(machine: _Machine, size: struct.Struct) -> None:
    content = machine.take(machine.number(size))
    machine.stack.append(content.decode(errors="replace"))


def _short_text(machine: _Machine) -> None:
    machine.stack.append(machine.take(machine.take(1)[0]).decode(errors="replace"))


def _bytes(machine: _Machine, size: int) -> None:
    machine.stack.append(machine.take(size))


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _dict(machine: _Machine) -> None:
    parts = machine.above_mark()
    machine.stack.append({})
    _update(machine, parts)


_OPCODES: dict[int, Callable[[_Machine], Any]] = {
    ord("N"): lambda each: each.stack.append(None),
    0x88: lambda each: each.stack.append(True),
    0x89: lambda each: each.stack.append(False),
    ord("J"): lambda each: each.stack.append(each.number(_I32)),
    ord("G"): lambda each: each.stack.append(each.number(_F64)),
    0x8A: _long,
    ord("}"): lambda each: each.stack.append({}),
    ord(")"): lambda each: each.stack.append(()),
    ord("l"): lambda each: each.stack.append(each.above_mark()),
    ord("t"): lambda each: each.stack.append(tuple(each.above_mark())),
    0x85: lambda each: each.stack.append(tuple(each.popped(1))),
    0x86: lambda each: each.stack.append(tuple(each.popped(2))),
    0x87: lambda each: each.stack.append(tuple(each.popped(3))),
    ord("d"): _dict,
    ord("a"): _append,
    ord("q"): lambda each: _put(each, each.take(1)[0]),
    ord("r"): lambda each: _put(each, each.number(_U32)),
    ord("s"): lambda each: _update(each, each.popped(2)),
    ord("u"): lambda each: _update(each, each.above_mark()),
    ord("X"): lambda each: _text(each, _U32),
    0x8C: _short_text,
    0x8D: lambda each: _text(each, _U64),
    ord("C"): lambda each: _bytes(each, each.take(1)[0]),
    ord("B"): lambda each: _bytes(each, each.number(_U32)),
    0x94: _memoize,
    0x80: lambda each: each.take(1),
    0x95: lambda each: each.take(8),
}


@dataclass(frozen=True, slots=True)
class DumpDirectory:
    """The dumps of a directory in the order of ranks.

    ``unreadable`` has the reason for each file that is not a dump, ``damaged`` the ranks whose only file is
    such a file.
    """

    dumps: tuple[Dump, ...] = ()
    unreadable: tuple[str, ...] = ()
    damaged: frozenset[int] = frozenset()


#: Callback for each dump as it is read, with all entries of its file.
Also = Callable[[Dump, Bundles], None]


def read_dumps(folder: Path, *, limit_s: float = math.inf, also: Also | None = None) -> DumpDirectory:
    """Read every dump of a directory; the rank is the number at the end of a file's name.

    Parameters
    ----------
    limit_s
        Seconds after which no further file is read.
    also
        Called with each dump and all entries of its file.

    Raises
    ------
    GipfelError
        Two dumps are from the same rank, so they can't be from one job.
    OSError
        The directory can't be read.
    """
    end = time.monotonic() + limit_s
    dumps: dict[int, tuple[str, Dump]] = {}
    unreadable: list[str] = []
    damaged = set()
    paths = sorted(islice(folder.iterdir(), _MAX_FILES), key=_scattered if math.isfinite(limit_s) else None)
    left = 0
    for path in paths:
        match = _RANK.fullmatch(path.name)
        if not path.is_file() or match is None:
            continue
        rank = int(match[2])
        if time.monotonic() > end:
            left += 1
            damaged.add(rank)
            continue
        try:
            dump = _read(path, rank, also)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            unreadable.append(f"{path.name[:_MAX_NAME]}: {reason}")
            damaged.add(rank)
            continue
        if rank in dumps and dumps[rank][0] != match[1]:
            raise _several_jobs(folder, f"two are of rank {rank} ({path.name})")
        dumps[rank] = (match[1], dump)
    found = tuple(dumps[rank][1] for rank in sorted(dumps))
    late = (f"{left} of {len(paths)} files: reading the others took {limit_s:.0f} s",) if left else ()
    return DumpDirectory(found, (*late, *sorted(unreadable)), frozenset(damaged - set(dumps)))


def _scattered(path: Path) -> int:
    # Read in a scattered order, so that at the time limit not only files of the first ranks have been read.
    return zlib.crc32(path.name.encode(errors="surrogateescape"))


def _read(path: Path, rank: int, also: Also | None) -> Dump:
    written_ns = path.lstat().st_mtime_ns
    content = read_regular(path, MAX_BYTES)
    if not content:
        raise ValueError("it is empty")
    return replace(read_dump(content, rank, also), written_ns=written_ns)


def read_dump(content: bytes, rank: int, also: Also | None = None) -> Dump:
    """Return the dump of one rank.

    Raises
    ------
    ValueError
        The content is not a dump.
    """
    try:
        return dump_of(_json(content) if content[:1] == b"{" else plain_value(content), rank, also)
    except (TypeError, AttributeError, ArithmeticError, RecursionError, IndexError) as error:
        raise ValueError(f"its values are not those of a flight recorder ({type(error).__name__})") from error


def check_one_job(folder: Path, dumps: Sequence[Dump]) -> None:
    """Refuse dumps that can't be of one job.

    Raises
    ------
    GipfelError
        Ranks disagree on the members of the default group, or one ended long before another began.
    """
    worlds: dict[int, int] = {}
    for dump in dumps:
        for group, label in dump.groups.items():
            if label == "default_pg":
                worlds.setdefault(len(group.members), dump.rank)
                if dump.rank not in group.members:
                    worlds.setdefault(-1, dump.rank)
    if len(worlds) > 1:
        sizes = " and ".join(
            f"{size} ranks (rank {rank})" for size, rank in sorted(worlds.items()) if size > 0
        )
        raise _several_jobs(folder, f"jobs of {sizes}, and dumps of one job agree on its ranks")
    timed = [each for each in dumps if each.oldest_ns is not None and each.newest_ns is not None]
    if not timed:
        return
    first = min(timed, key=lambda each: each.newest_ns or 0)
    last = max(timed, key=lambda each: each.oldest_ns or 0)
    gap_s = ((last.oldest_ns or 0) - (first.newest_ns or 0)) / 1e9
    timeout_s = max((call.timeout_ms for each in (first, last) if (call := each.last)), default=0) / 1e3
    if gap_s > max(3600.0, 2 * timeout_s):
        raise _several_jobs(
            folder,
            f"rank {first.rank}'s last call is {gap_s / 3600:.1f} hours before rank {last.rank}'s first",
        )


def _several_jobs(folder: Path, reason: str) -> GipfelError:
    return GipfelError(
        f"{folder} has dumps of several jobs: {reason}.",
        "Keep the dumps of one job in a directory of their own.",
    )


def _json(content: bytes) -> Any:
    # A value of a few bytes in JSON takes dozens of bytes in memory.
    if sum(content.count(each) for each in (b",", b"[", b"{")) > _MAX_JSON_VALUES:
        raise ValueError(f"it holds more than {_MAX_JSON_VALUES} values")
    return json.loads(content)
