"""Read a pickle's opcodes without loading it, and collect the names that loading would look up.

The walk follows the stack and the memo as far as needed to know each name, whatever its disguise: names that
are put together from the memo, mapped from Python 2, nested in bytes, or registered as an extension. It reads
the file forward in constant memory, and follows the unpickler where others stop: code before a broken opcode
has run by then. Source of the opcodes: ``pickletools.opcodes`` and ``pickle._Unpickler`` of Python 3.13.
"""

import pickletools
import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from .streams import Budget, NotUnderstoodError, skip

_MOST_OPCODES = 5_000_000
_MOST_WAITING = 1_000_000
_LONGEST_TEXT = 4096
_LONGEST_NESTED = 64 << 20
_LONGEST_LINE = 1 << 20
_MOST_NAMES = 10_000
_NAMES = {opcode.code: opcode.name for opcode in pickletools.opcodes}
#: Bytes of the argument's length, for opcodes with a counted argument.
_COUNTED = {
    "SHORT_BINSTRING": 1, "BINSTRING": 4, "SHORT_BINUNICODE": 1, "BINUNICODE": 4, "BINUNICODE8": 8,
    "SHORT_BINBYTES": 1, "BINBYTES": 4, "BINBYTES8": 8, "BYTEARRAY8": 8, "LONG1": 1, "LONG4": 4,
}  # fmt: skip
_FIXED = {
    "BININT": "<i", "BININT1": "<B", "BININT2": "<H", "BINFLOAT": ">d", "BINGET": "<B", "LONG_BINGET": "<I",
    "BINPUT": "<B", "LONG_BINPUT": "<I",
    "EXT1": "<B", "EXT2": "<H", "EXT4": "<i", "PROTO": "<B", "FRAME": "<Q",
}  # fmt: skip
_LINES = frozenset(("INT", "LONG", "FLOAT", "STRING", "UNICODE", "GET", "PUT", "PERSID"))
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ARRAY = ("joblib.numpy_pickle", "NumpyArrayWrapper")
_DTYPE = re.compile(r"[biufcmMSU?]\d{0,9}")


class _Unknown:
    """A value that the walk does not follow."""


UNKNOWN = _Unknown()


class Named:
    """A looked-up name."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Called:
    """The result of a call, and the state that was set afterwards."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.function, self.arguments = function, arguments
        self.state: dict[Any, Any] = {}


class Walk:
    """One pickle: what was found so far is in its attributes, also when :meth:`run` raises.

    Attributes
    ----------
    names
        Pairs of module and name, in the order of their look-up.
    hidden
        Ways in which it hides the name of what it calls.
    unclear
        Reasons why something in it could not be followed.
    nested
        Bytes in it that the pickle loads as a file of torch.
    calls
        Number of calls, objects built and states set.
    value
        The value on top at the end, where it is followed.
    """

    def __init__(self, file: BinaryIO, budget: Budget, *, joblib: bool = True) -> None:
        self.names: dict[tuple[str, str], None] = {}
        self.hidden: list[str] = []
        self.unclear: list[str] = []
        self.nested: list[bytes] = []
        self.calls = 0
        self.has_arrays = False
        self.object_array = False
        self.value: Any = UNKNOWN
        self._file, self._budget, self._joblib = file, budget, joblib
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> None:
        """Walk to the end of the pickle; the file is then behind it.

        Raises
        ------
        NotUnderstoodError
            The pickle is broken or too long.
        """
        try:
            for name, argument in self._opcodes():
                self._execute(name, argument)
        except (IndexError, KeyError, ValueError, struct.error, OverflowError, TypeError) as error:
            raise NotUnderstoodError("its pickle is broken") from error
        self.value = self._stack[-1] if self._stack else UNKNOWN

    def _opcodes(self) -> Iterator[tuple[str, Any]]:
        for count in range(_MOST_OPCODES):
            code = self._read(1)
            name = _NAMES[code.decode("latin-1")]
            if name == "STOP":
                return
            if count % 4096 == 0:
                self._budget.check_time()
            if len(self._stack) + len(self._marks) + len(self._memo) > _MOST_WAITING * 3:
                break
            yield name, self._argument(name)
        raise NotUnderstoodError(f"its pickle has more than {_MOST_OPCODES} opcodes")

    def _read(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) != count:
            raise NotUnderstoodError("its pickle is cut off")
        return content

    def _line(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise NotUnderstoodError("its pickle is cut off")
        return line[:-1]

    def _argument(self, name: str) -> Any:
        if name in _FIXED:
            return struct.unpack(_FIXED[name], self._read(struct.calcsize(_FIXED[name])))[0]
        if name in _COUNTED:
            length = int.from_bytes(self._read(_COUNTED[name]), "little")
            return self._counted(name, length)
        if name in _LINES:
            return self._line()
        if name in ("GLOBAL", "INST"):
            return self._line().decode(errors="replace"), self._line().decode(errors="replace")
        return None

    def _counted(self, name: str, length: int) -> Any:
        is_text = "UNICODE" in name or "STRING" in name
        if length > (_LONGEST_TEXT if is_text else _LONGEST_NESTED):
            if not skip(self._file, length):
                raise NotUnderstoodError("its pickle is cut off")
            return UNKNOWN
        content = self._read(length)
        if is_text:
            return content.decode(errors="replace")
        return int.from_bytes(content, "little", signed=True) if name.startswith("LONG") else content

    def _execute(self, name: str, argument: Any) -> None:
        if name in _FIXED or name in _COUNTED or name in _LINES:
            self._argument_opcode(name, argument)
        elif name in _CONSTANTS:
            self._push(_CONSTANTS[name])
        elif name in _TUPLES:
            count = _TUPLES[name]
            parts = tuple(self._stack[len(self._stack) - count :])
            if len(parts) < count:
                raise IndexError
            del self._stack[len(self._stack) - count :]
            self._push(parts)
        elif name == "MARK":
            self._marks.append(len(self._stack))
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in ("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "BUILD"):
            self._code_opcode(name, argument)
        else:
            self._container_opcode(name)

    def _argument_opcode(self, name: str, argument: Any) -> None:
        if name in ("PROTO", "FRAME"):
            return
        if name in ("GET", "BINGET", "LONG_BINGET"):
            self._push(self._memo[int(argument)])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = self._stack[-1]
        elif name.startswith("EXT"):
            self.unclear.append("it uses the registry of extensions, whose names are not in the file")
            self._push(UNKNOWN)
        elif name in ("STRING", "UNICODE"):
            self._push(_text(name, argument))
        elif name in ("INT", "LONG"):
            self._push(_integer(argument))
        elif name in ("FLOAT", "PERSID"):
            self._push(UNKNOWN)
        else:
            self._push(argument)

    def _code_opcode(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            self._push(self._look_up(*argument))
        elif name == "STACK_GLOBAL":
            attribute, module = self._stack.pop(), self._stack.pop()
            self._push(self._look_up(module, attribute))
        elif name == "INST":
            parts = tuple(self._pop_mark())
            self._push(self._call(self._look_up(*argument), parts))
        elif name == "OBJ":
            function, *given = self._pop_mark()
            self._push(self._call(function, tuple(given)))
        elif name == "BUILD":
            self._build(self._stack.pop())
        else:
            if name == "NEWOBJ_EX":
                self._stack.pop()
            parts, function = self._stack.pop(), self._stack.pop()
            self._push(self._call(function, parts))

    def _look_up(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            self.hidden.append("it computes the name of what it calls")
            return UNKNOWN
        self.names.setdefault((module, name))
        if len(self.names) > _MOST_NAMES:
            raise NotUnderstoodError(f"its pickle refers to more than {_MOST_NAMES} names")
        return Named(module, name)

    def _call(self, function: Any, arguments: Any) -> Any:
        self.calls += 1
        if isinstance(function, Named):
            full = (function.module, function.name)
            if full[0] in ("builtins", "__builtin__") and full[1] == "getattr":
                return self._attribute(arguments)
            if full == ("torch.storage", "_load_from_bytes") and isinstance(arguments, tuple) and arguments:
                if isinstance(arguments[0], bytes):
                    self.nested.append(arguments[0])
                else:
                    self.unclear.append("it loads a file inside it that can't be followed")
        return Called(function, arguments)

    def _attribute(self, arguments: Any) -> Any:
        """Follow ``getattr(Class, 'name')``, which protocols before 4 write for nested classes."""
        if isinstance(arguments, tuple) and len(arguments) == 2 and isinstance(arguments[1], str):
            owner, name = arguments
            if isinstance(owner, Named) and not name.startswith("_"):
                self.names.pop(("builtins", "getattr"), None)
                self.names.pop(("__builtin__", "getattr"), None)
                return self._look_up(owner.module, f"{owner.name}.{name}")
        self.names.setdefault(("builtins", "getattr"))
        return UNKNOWN

    def _build(self, state: Any) -> None:
        self.calls += 1
        target = self._stack[-1]
        if not isinstance(target, Called):
            return
        if isinstance(state, dict):
            target.state.update(state)
        elif isinstance(state, tuple):
            target.state["state"] = state
        if isinstance(target.function, Named) and (target.function.module, target.function.name) == _ARRAY:
            self.has_arrays = True
            if self._joblib:
                self._stack[-1] = UNKNOWN
                self._skip_array(target.state)

    def _skip_array(self, state: dict[Any, Any]) -> None:
        """Move behind the array that joblib writes into its pickle. Source: ``joblib.numpy_pickle``, 1.4."""
        shape, dtype = state.get("shape"), state.get("dtype")
        kind = dtype.arguments[0] if isinstance(dtype, Called) and _is_dtype(dtype) else None
        if kind in ("O8", "O", "|O"):
            # joblib writes a pickle of its own here, and continues behind it.
            self.object_array = True
            inner = Walk(self._file, self._budget)
            try:
                inner.run()
            finally:
                self._adopt(inner)
            return
        if not isinstance(kind, str) or not _DTYPE.fullmatch(kind) or not isinstance(shape, tuple):
            raise NotUnderstoodError("the type of an array in it is not known")
        count = int(kind[1:] or 1) * (4 if kind[0] == "U" else 1)
        for length in shape:
            if not isinstance(length, int) or not 0 <= length < 1 << 48 or count > 1 << 60:
                raise NotUnderstoodError("the shape of an array in it is not valid")
            count *= length
        if state.get("numpy_array_alignment_bytes") is not None:
            count += self._read(1)[0]
        if not skip(self._file, count):
            raise NotUnderstoodError("an array in it is cut off")

    def _adopt(self, inner: "Walk") -> None:
        self.names.update(inner.names)
        self.hidden += inner.hidden
        self.unclear += inner.unclear
        self.nested += inner.nested
        self.calls += inner.calls

    def _container_opcode(self, name: str) -> None:
        if name in ("EMPTY_LIST", "EMPTY_SET"):
            self._push(UNKNOWN)
        elif name == "EMPTY_DICT":
            self._push({})
        elif name == "POP":
            self._pop()
        elif name == "DUP":
            self._push(self._stack[-1])
        elif name in ("BINPERSID", "LIST", "FROZENSET"):
            _ = self._stack.pop() if name == "BINPERSID" else self._pop_mark()
            self._push(UNKNOWN)
        elif name == "POP_MARK":
            self._pop_mark()
        elif name == "TUPLE":
            self._push(tuple(self._pop_mark()))
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            _ = self._stack.pop() if name == "APPEND" else self._pop_mark()
            _ = self._stack[-1]
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            self._set_items(name)
        elif name == "NEXT_BUFFER":
            self._push(UNKNOWN)
        elif name != "READONLY_BUFFER":
            raise NotUnderstoodError(f"its pickle has the opcode {name}, which is not known")

    def _set_items(self, name: str) -> None:
        parts = self._pop_mark() if name != "SETITEM" else [self._stack.pop(-2), self._stack.pop()]
        if name == "DICT":
            self._push({})
        target = self._stack[-1]
        if isinstance(target, dict):
            # The keys of states are texts; what else a dictionary holds decides nothing.
            target.update(
                (key, value)
                for key, value in zip(parts[::2], parts[1::2], strict=False)
                if isinstance(key, str)
            )

    def _pop_mark(self) -> list[Any]:
        start = self._marks.pop()
        parts = self._stack[start:]
        del self._stack[start:]
        return parts

    def _pop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _push(self, value: Any) -> None:
        self._stack.append(value)


def _is_dtype(value: Called) -> bool:
    function = value.function
    named = isinstance(function, Named) and (function.module, function.name) == ("numpy", "dtype")
    return named and isinstance(value.arguments, tuple) and bool(value.arguments)


def _text(name: str, line: bytes) -> Any:
    if len(line) > _LONGEST_TEXT:
        return UNKNOWN
    if name == "UNICODE":
        return line.decode("raw-unicode-escape")
    quoted = line.strip()
    if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b"'", b'"'):
        raise ValueError
    return quoted[1:-1].decode("unicode-escape")


def _integer(line: bytes) -> Any:
    if line in (b"00", b"01"):
        return line == b"01"
    text = line.rstrip(b"L")
    return int(text, 0) if len(text) < 40 else UNKNOWN
