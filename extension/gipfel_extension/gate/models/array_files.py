"""Files of arrays: NumPy's ``.npy`` and safetensors. Their headers say what follows."""

import ast
import json
import struct
from typing import Any, BinaryIO

from ..model import Finding
from .judgement import Judgement
from .streams import NotUnderstoodError

_MAX_NPY_HEADER_BYTES = 1 << 20
_MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
_MAX_READ_HEADER_BYTES = 64 << 20


def npy_holds_objects(file: BinaryIO) -> bool:
    """Return whether a pickle of objects follows the header; the file is then at the pickle.

    Source: ``numpy.lib.format``, versions 1.0 to 3.0.

    Raises
    ------
    NotUnderstoodError
        The header is broken.
    """
    head = file.read(8)
    wide = head[6:7] > b"\x01"
    raw = file.read(4 if wide else 2)
    length = int.from_bytes(raw, "little")
    if len(head) < 8 or length > _MAX_NPY_HEADER_BYTES:
        raise NotUnderstoodError("its NumPy header is broken")
    try:
        header = ast.literal_eval(file.read(length).decode("utf-8").strip())
        descr = header["descr"]
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise NotUnderstoodError("its NumPy header is broken") from error
    return _has_objects(descr)


def _has_objects(descr: Any) -> bool:
    if isinstance(descr, str):
        return "O" in descr
    if isinstance(descr, list | tuple):
        return any(
            _has_objects(each[1]) for each in descr if isinstance(each, list | tuple) and len(each) > 1
        )
    raise NotUnderstoodError("its NumPy header is broken")


def object_array(inner: Judgement) -> Judgement:
    """Return the judgement on an array of objects by that on its pickle."""
    finding = Finding(
        rule="numpy-objects",
        severity="high",
        message="It is an array of Python objects, which NumPy loads by unpickling.",
        fix="Save plain arrays, and load with allow_pickle=False.",
    )
    return Judgement.union([Judgement.of([("needs code", finding)]), inner])


def scan_safetensors(file: BinaryIO, size: int) -> Judgement:
    """Judge a safetensors file: its header describes all of its bytes, or it is not understood.

    Source: the format's description in huggingface/safetensors.
    """
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(_MAX_SAFETENSORS_HEADER_BYTES, _MAX_READ_HEADER_BYTES, size - 8):
        raise NotUnderstoodError("its safetensors header is broken")
    try:
        header = json.loads(file.read(length))
        spans = sorted(
            tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotUnderstoodError("its safetensors header is broken") from error
    at = 0
    for span in spans:
        if len(span) != 2 or span[0] != at or not isinstance(span[1], int) or span[1] < at:
            raise NotUnderstoodError("the tensors of its safetensors header overlap or leave gaps")
        at = span[1]
    if at != size - 8 - length:
        raise NotUnderstoodError("its safetensors header does not describe all of the file")
    return Judgement()
