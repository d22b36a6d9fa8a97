"""Read a pickle's opcodes without loading it, and collect the names that loading would look up.

The walk follows the stack and the memo as far as needed to find each name even if it is disguised: built from
memo entries, mapped from Python 2, nested in bytes, or registered as an extension. It reads the file forward
and keeps at most 256 MiB of texts and nested files. Unlike scanners that reject a broken pickle, it reports
the names before a broken opcode, since an unpickler has run their code by then. Source of the opcodes:
``pickletools.opcodes`` and ``pickle._Unpickler`` of Python 3.13.
"""

import pickletools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from .pickle_values import (
    ARRAY,
    FOLLOWED,
    FROM_TYPE,
    GETATTR,
    LOAD,
    MAX_TEXT,
    PADDING,
    UNKNOWN,
    Called,
    Named,
    array_size,
    integer_of,
    text_of,
)
from .streams import Budget, NotUnderstoodError, skip

_MAX_OPCODES = 5_000_000
_MAX_WAITING = 1_000_000
_MAX_NESTED = 64 << 20
_MAX_LINE = 1 << 20
_MAX_NAMES = 10_000
#: Largest number of bytes that one walk keeps: texts and nested torch files.
_MAX_KEPT = 256 << 20
_NAMES = {opcode.code: opcode.name for opcode in pickletools.opcodes}
#: Size in bytes of the length field, for opcodes with a counted argument.
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


class Walk:
    """The walk through one pickle. The attributes have what was found so far, even if :meth:`run` raises.

    Attributes
    ----------
    names
        Pairs of module and name that loading looks up, in that order.
    hidden
        Ways in which the pickle disguises the names of what it calls, as clauses.
    unclear
        Reasons why the walk could not follow something, as clauses.
    nested
        Bytes in the pickle that it loads as torch files.
    calls
        Number of calls, objects built and states set.
    value
        The value that loading returns, as far as the walk follows it.
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
        self._kept = 0

    def run(self) -> None:
        """Walk to the end of the pickle; the file's position is then just behind it.

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
        for count in range(_MAX_OPCODES):
            code = self._read(1)
            name = _NAMES[code.decode("latin-1")]
            if name == "STOP":
                return
            if count % 4096 == 0:
                self._budget.check_time()
            if len(self._stack) + len(self._marks) + len(self._memo) > _MAX_WAITING * 3:
                break
            yield name, self._argument(name)
        raise NotUnderstoodError(f"its pickle has more than {_MAX_OPCODES} opcodes")

    def _read(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) != count:
            raise NotUnderstoodError("its pickle is cut off")
        return content

    def _line(self) -> bytes:
        line = self._file.readline(_MAX_LINE)
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
        if length > MAX_TEXT if is_text else not self._is_kept(name, length):
            if not skip(self._file, length):
                raise NotUnderstoodError("its pickle is cut off")
            return UNKNOWN
        content = self._read(length)
        self._kept += length
        if is_text:
            if self._kept > _MAX_KEPT:
                raise NotUnderstoodError(f"its pickle holds more than {_MAX_KEPT >> 20} MiB of text")
            return content.decode(errors="replace")
        return int.from_bytes(content, "little", signed=True) if name.startswith("LONG") else content

    def _is_kept(self, name: str, length: int) -> bool:
        """Return whether bytes may be a nested torch file, whose loader the pickle names before the bytes."""
        if name.startswith("LONG"):
            return length <= MAX_TEXT
        # Not a bytearray, whose content can change before it is used.
        fits = length <= _MAX_NESTED and self._kept + length <= _MAX_KEPT
        return fits and name != "BYTEARRAY8" and LOAD in self.names

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
            self._check_values(parts)
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
            self._push(text_of(name, argument))
        elif name in ("INT", "LONG"):
            self._push(integer_of(argument))
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
            parts = tuple(self._pop_values())
            self._push(self._call(self._look_up(*argument), parts, name))
        elif name == "OBJ":
            function, *given = self._pop_mark()
            self._check_values(given)
            self._push(self._call(function, tuple(given), name))
        elif name == "BUILD":
            self._build(self._stack.pop())
        else:
            if name == "NEWOBJ_EX":
                self._check_values([self._stack.pop()])
            parts, function = self._stack.pop(), self._stack.pop()
            self._check_values([parts])
            self._push(self._call(function, parts, name))

    def _look_up(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            self.hidden.append("it computes the name of what it calls")
            return UNKNOWN
        if (found := Named(module, name)).full != GETATTR:
            # getattr is not judged as a name, but by the attribute that each call reads.
            self.names.setdefault((module, name))
        if len(self.names) > _MAX_NAMES:
            raise NotUnderstoodError(f"its pickle refers to more than {_MAX_NAMES} names")
        return found

    def _check_values(self, values: Iterable[Any]) -> None:
        """Record the names among values that other code may call, with arguments unknown to the walk."""
        for value in values:
            if not isinstance(value, Named) or value.full not in FOLLOWED:
                continue
            if value.full == ARRAY:
                self.unclear.append("it builds an array of joblib in an unusual way")
            else:
                self.names.setdefault((value.module, value.name))
                self.hidden.append(f"it passes {'.'.join(value.full)} on to other code")

    def _call(self, function: Any, arguments: Any, opcode: str) -> Any:
        self.calls += 1
        if not isinstance(function, Named):
            self.unclear.append("it calls something that it has computed")
        elif function.full == GETATTR:
            return self._attribute(arguments)
        elif function.full == LOAD:
            if isinstance(arguments, tuple) and arguments and isinstance(arguments[0], bytes):
                self.nested.append(arguments[0])
            else:
                self.unclear.append("it loads a file inside it that can't be followed")
        elif function.full == FROM_TYPE:
            # This function calls its first argument with its third.
            if isinstance(arguments, tuple) and len(arguments) == 4:
                self._call(arguments[0], arguments[2], "REDUCE")
            else:
                self.unclear.append("it builds a tensor in a way that can't be followed")
        elif function.full == ARRAY and (opcode != "NEWOBJ" or arguments != ()):
            self.unclear.append("it builds an array of joblib in an unusual way")
        return Called(function, arguments)

    def _attribute(self, arguments: Any) -> Any:
        """Follow ``getattr(Class, 'name')``, which protocols before 4 use for nested classes."""
        if isinstance(arguments, tuple) and len(arguments) == 2 and isinstance(arguments[1], str):
            owner, name = arguments
            if isinstance(owner, Named) and not name.startswith("_"):
                return self._look_up(owner.module, f"{owner.name}.{name}")
        self.names.setdefault(GETATTR)
        return UNKNOWN

    def _build(self, state: Any) -> None:
        self.calls += 1
        self._check_values([state])
        target = self._stack[-1]
        if isinstance(target, Named):
            self.unclear.append(f"it changes {target.module}.{target.name}")
        if not isinstance(target, Called):
            return
        if isinstance(state, dict):
            target.state.update(state)
        elif isinstance(state, tuple):
            target.state["state"] = state
        else:
            target.state[UNKNOWN] = state
        if isinstance(target.function, Named) and target.function.full == ARRAY:
            self.has_arrays = True
            if self._joblib:
                self._stack[-1] = UNKNOWN
                self._skip_array(target.state)

    def _skip_array(self, state: dict[Any, Any]) -> None:
        """Skip the array bytes that joblib writes into its pickle. Source: ``joblib.numpy_pickle``, 1.4."""
        size = array_size(state)
        if size is None:
            # For an array of objects, joblib writes a separate pickle here, and continues behind it.
            self.object_array = True
            inner = Walk(self._file, self._budget)
            try:
                inner.run()
            finally:
                self._adopt(inner)
            return
        if state.get(PADDING) is not None:
            size += self._read(1)[0]
        if not skip(self._file, size):
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
            self._check_values([self._stack.pop()] if name == "BINPERSID" else self._pop_mark())
            self._push(UNKNOWN)
        elif name == "POP_MARK":
            self._pop_mark()
        elif name == "TUPLE":
            self._push(tuple(self._pop_values()))
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            self._check_values([self._stack.pop()] if name == "APPEND" else self._pop_mark())
            _ = self._stack[-1]
        elif name in ("SETITEM", "SETITEMS", "DICT"):
            self._set_items(name)
        elif name == "NEXT_BUFFER":
            self._push(UNKNOWN)
        elif name != "READONLY_BUFFER":
            raise NotUnderstoodError(f"its pickle has the opcode {name}, which is not known")

    def _set_items(self, name: str) -> None:
        parts = self._pop_mark() if name != "SETITEM" else [self._stack.pop(-2), self._stack.pop()]
        self._check_values(parts)
        if name == "DICT":
            self._push({})
        target = self._stack[-1]
        if isinstance(target, dict):
            # Keys of states are texts. A key that is not one may be a text that the pickle computes.
            target.update(
                (key if isinstance(key, str) else UNKNOWN, value)
                for key, value in zip(parts[::2], parts[1::2], strict=False)
            )

    def _pop_values(self) -> list[Any]:
        parts = self._pop_mark()
        self._check_values(parts)
        return parts

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
