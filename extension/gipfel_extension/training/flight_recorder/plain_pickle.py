"""Reader of pickles of plain values, without Python's unpickler and without executing anything.

Python's unpickler is not safe for files of others: a few bytes can make it allocate gigabytes for its memo,
and a name in the file is imported and called. `plain_value` knows only the opcodes of numbers, texts, lists,
tuples and dictionaries, as torch's C++ pickler and Python's protocols 2 to 5 write them, and rejects the
file at any other. Each opcode builds at most one small object, so memory is bounded by the number of opcodes
and the size of the file. A few hundred bytes can still describe a value that expands to billions of elements
or contains itself: callers must look at the levels that they know, and never format, compare or copy a whole
value.
"""

import pickletools
import struct
from collections.abc import Callable
from itertools import repeat
from typing import Any

MAX_BYTES = 64 << 20
#: A dump of 20 000 calls with their stacks has three million opcodes.
_MAX_OPCODES = 5_000_000
_LARGEST = 1 << 63
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_STOP = ord(".")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_I32, _F64 = struct.Struct("<i"), struct.Struct(">d")


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
