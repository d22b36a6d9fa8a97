"""Values of pickles that hold only plain values, such as the dumps of PyTorch's flight recorder.

Nothing is imported, called or executed.
"""

import pickletools
import re
import struct
from collections.abc import Callable
from itertools import repeat
from typing import Any

MAX_BYTES = 64 << 20
#: Larger pickles are rejected; a dump of 20 000 collectives with their stacks has three million opcodes.
_MAX_OPCODES = 5_000_000
_LARGEST = 1 << 63
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_STOP = ord(".")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_I32, _F64 = struct.Struct("<i"), struct.Struct(">d")
#: Regular expressions of one opcode that pushes a plain value (BINGET, integers, None, booleans, floats), and
#: of a value: such an opcode, a tuple of up to three, or a list of them or of lists of them. The groups are
#: atomic, so that damaged files cause no backtracking.
_SCALAR = (
    rb"(?>h.|K.|M.{2}|J.{4}|j.{4}|N|\x88|\x89|G.{8}|\x8a(?:\x00|\x01.|\x02.{2}|\x03.{3}|\x04.{4}|\x05.{5}"
    rb"|\x06.{6}|\x07.{7}|\x08.{8}))"
)
_FLAT = rb"(?>\](?:\((?:" + _SCALAR + rb")*+e)?)"
_TUPLE = _SCALAR + rb"(?:\x85|" + _SCALAR + rb"(?:\x86|" + _SCALAR + rb"\x87))"
_LIST = rb"\](?:\((?:" + _SCALAR + rb"|" + _FLAT + rb")*+e)?"
_VALUE = rb"(?>" + _TUPLE + rb"|" + _SCALAR + rb"|" + _LIST + rb"|\))"
_PAIR = re.compile(rb"(h.|j.{4})(" + _VALUE + rb")", re.DOTALL)
#: Fewest keys for which matching a dictionary as a whole (`similar`) saves time, and number of shapes (keys
#: in their order) that are kept; the entries of a dump have few.
_LEAST_KEYS, _MOST_SHAPES = 8, 4


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

    __slots__ = ("content", "marks", "memo", "position", "shapes", "stack", "values")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.shapes: list[tuple[re.Pattern[bytes], tuple[str, ...]]] = []
        self.values = _Values(self)

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
            elif code == 0x7D and (end := self.similar(at - 1)):  # EMPTY_DICT
                at = end
            elif code == _STOP:
                return stack[-1]
            else:
                self.position = at
                _OPCODES.get(code, _reject)(self)
                at = self.position
        raise ValueError("it has more opcodes than a dump can have")

    def similar(self, start: int) -> int:
        """Push the dictionary that begins at `start`, and return the position after it.

        If it is small or has other than plain values, change nothing and return 0.

        Entries of a dump have the same keys in the same order, and mostly the same values: the bytes of one
        are matched as a whole, and equal bytes are decoded once. Dictionaries can share decoded values: no
        later opcode can change these, since they are neither on the stack nor in the memo.
        """
        for place, (shape, keys) in enumerate(self.shapes):
            if found := shape.match(self.content, start):
                self.stack.append(dict(zip(keys, map(self.values.__getitem__, found.groups()), strict=True)))
                if place:
                    self.shapes.insert(0, self.shapes.pop(place))
                return found.end()
        return self._learn(start)

    def _learn(self, start: int) -> int:
        """Do the same as `similar` for a dictionary of a new shape, and keep the shape for the next ones."""
        if self.content[start + 1 : start + 2] != b"(":
            return 0
        keys, values, parts, at = [], [], [rb"\}\("], start + 2
        while found := _PAIR.match(self.content, at):
            key = self.memo.get(_number(found[1]))
            if not isinstance(key, str):
                return 0
            keys.append(key)
            values.append(found[2])
            parts.append(re.escape(found[1]) + b"(" + _VALUE + b")")
            at = found.end()
        if len(keys) < _LEAST_KEYS or self.content[at : at + 1] != b"u":
            return 0
        shape = re.compile(b"".join(parts) + b"u", re.DOTALL)
        self.shapes = [(shape, tuple(keys)), *self.shapes][:_MOST_SHAPES]
        self.stack.append(dict(zip(keys, map(self.values.__getitem__, values), strict=True)))
        return at + 1

    def remember(self, index: int, value: Any) -> None:
        """Give a value a number in the memo."""
        if index in self.memo:
            # The number refers to another value from now on.
            self.shapes.clear()
            self.values.clear()
        self.memo[index] = value

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


class _Values(dict[bytes, Any]):
    """Values by their bytes in the file; numbers, which mostly differ, are decoded each time."""

    __slots__ = ("_machine",)

    def __init__(self, machine: _Machine) -> None:
        super().__init__()
        self._machine = machine

    def __missing__(self, raw: bytes) -> Any:
        # Single numbers; their size distinguishes them from tuples, which begin with the same opcode.
        code, size = raw[0], len(raw)
        if code == 0x4B and size == 2:
            return raw[1]
        if code == 0x4D and size == 3:
            return raw[1] | raw[2] << 8
        if code == 0x8A and raw[1] == size - 2:
            return int.from_bytes(raw[2:], "little", signed=True)
        if code == 0x4A and size == 5:
            return int.from_bytes(raw[1:], "little", signed=True)
        part = _Machine(raw + b".")
        part.memo = self._machine.memo
        self[raw] = value = part.run()
        return value


def _number(raw: bytes) -> int:
    return int.from_bytes(raw[1:], "little")


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
    machine.remember(index, machine.stack[-1])


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
    machine.remember(len(machine.memo), machine.stack[-1])


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
