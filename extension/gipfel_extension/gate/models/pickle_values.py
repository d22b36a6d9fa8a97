"""Values of a pickle as a walk follows them: names, calls, and the size of an array that joblib writes."""

import re
from typing import Any

from .callables import modern
from .streams import NotUnderstoodError

MAX_TEXT = 4096
PADDING = "numpy_array_alignment_bytes"
ARRAY = ("joblib.numpy_pickle", "NumpyArrayWrapper")
LOAD = ("torch.storage", "_load_from_bytes")
FROM_TYPE = ("torch._tensor", "_rebuild_from_type_v2")
GETATTR = ("builtins", "getattr")
#: Names that the walk follows where the pickle calls them itself. As a value, others may call them unseen.
FOLLOWED = frozenset((ARRAY, LOAD, FROM_TYPE, GETATTR))
_DTYPE = re.compile(r"[biufcmMSU]\d{1,9}")


class _Unknown:
    """A value that the walk does not follow."""


UNKNOWN = _Unknown()


class Named:
    """A looked-up name."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self.full = modern(module, name)


class Called:
    """The result of a call, and the state that was set afterwards."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.function, self.arguments = function, arguments
        self.state: dict[Any, Any] = {}


def array_size(state: dict[Any, Any]) -> int | None:
    """Return the bytes of an array by the attributes of joblib's wrapper; None if a pickle stands for it.

    Raises
    ------
    NotUnderstoodError
        An attribute is not a plain value, so that joblib may read another number of bytes.
    """
    shape, dtype, padding = state.get("shape"), state.get("dtype"), state.get(PADDING)
    if not {"state", UNKNOWN}.isdisjoint(state) or not isinstance(padding, int | None):
        raise NotUnderstoodError("the attributes of an array in it are not known")
    kind = dtype.arguments[0] if isinstance(dtype, Called) and _is_dtype(dtype) else None
    if kind in ("O8", "O", "|O"):
        return None
    if not isinstance(kind, str) or not _DTYPE.fullmatch(kind) or not isinstance(shape, tuple):
        raise NotUnderstoodError("the type of an array in it is not known")
    size = int(kind[1:]) * (4 if kind[0] == "U" else 1)
    if not isinstance(dtype, Called) or not _keeps_size(dtype, size):
        raise NotUnderstoodError("the type of an array in it is not known")
    for length in shape:
        if not isinstance(length, int) or not 0 <= length < 1 << 48 or size > 1 << 60:
            raise NotUnderstoodError("the shape of an array in it is not valid")
        size *= length
    return size


def _is_dtype(value: Called) -> bool:
    function = value.function
    named = isinstance(function, Named) and function.full == ("numpy", "dtype")
    return named and isinstance(value.arguments, tuple) and bool(value.arguments)


def _keeps_size(dtype: Called, size: int) -> bool:
    """Return whether the state of a dtype leaves the size of its elements. Source: ``dtype.__setstate__``."""
    if not dtype.state:
        return True
    state = dtype.state.get("state")
    if len(dtype.state) > 1 or not isinstance(state, tuple) or len(state) < 6:
        return False
    # Version, byte order, subarray, names, fields, size, alignment, flags, metadata.
    return state[2:5] == (None, None, None) and state[5] in (-1, size)


def text_of(name: str, line: bytes) -> Any:
    """Return the text of an opcode of protocol 0 by its line."""
    if len(line) > MAX_TEXT:
        return UNKNOWN
    if name == "UNICODE":
        return line.decode("raw-unicode-escape")
    quoted = line.strip()
    if len(quoted) < 2 or quoted[:1] != quoted[-1:] or quoted[:1] not in (b"'", b'"'):
        raise ValueError
    return quoted[1:-1].decode("unicode-escape")


def integer_of(line: bytes) -> Any:
    """Return the number of an opcode of protocol 0 by its line."""
    if line in (b"00", b"01"):
        return line == b"01"
    text = line.rstrip(b"L")
    return int(text, 0) if len(text) < 40 else UNKNOWN
