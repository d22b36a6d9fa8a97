"""GGUF files: the metadata before the tensors, of which chat templates are programs.

Source: docs/gguf.md of ggml-org/ggml.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from .judgement import Judgement
from .streams import Budget, NotUnderstoodError, skip
from .templates import template_findings

#: Bytes of a value by its type; 8 is text and 9 an array.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _ARRAY = 8, 9
_MAX_KEYS, _MAX_ELEMENTS = 100_000, 10_000_000
_MAX_KEY, _MAX_TEMPLATE = 1 << 16, 4 << 20


def scan_gguf(file: BinaryIO, budget: Budget) -> Judgement:
    """Judge the templates of a GGUF file."""
    findings = []
    for key, text in _texts(file, budget):
        if "template" in key:
            findings += template_findings(text, key)
    return Judgement.of(findings)


def _texts(file: BinaryIO, budget: Budget) -> Iterator[tuple[str, str]]:
    _, version, _, keys = _unpack(file, "<4sIQQ")
    if not 2 <= version <= 3 or keys > _MAX_KEYS:
        raise NotUnderstoodError("its GGUF header is not known")
    for _ in range(keys):
        key = _text(file, _MAX_KEY)
        (kind,) = _unpack(file, "<I")
        if kind == _TEXT:
            yield key, _text(file, _MAX_TEMPLATE)
        else:
            _skip_value(file, kind, budget)


def _skip_value(file: BinaryIO, kind: int, budget: Budget) -> None:
    if kind != _ARRAY:
        if kind not in _SIZES:
            raise NotUnderstoodError("its GGUF header is broken")
        _skip(file, _SIZES[kind])
        return
    inner, count = _unpack(file, "<IQ")
    if inner in _SIZES:
        _skip(file, _SIZES[inner] * count)
    elif inner == _TEXT and count <= _MAX_ELEMENTS:
        for index in range(count):
            if index % 4096 == 0:
                budget.check_time()
            (length,) = _unpack(file, "<Q")
            _skip(file, length)
    else:
        raise NotUnderstoodError("its GGUF header is broken")


def _text(file: BinaryIO, limit: int) -> str:
    (length,) = _unpack(file, "<Q")
    if length > limit:
        raise NotUnderstoodError("its GGUF header is broken")
    content = file.read(length)
    if len(content) != length:
        raise NotUnderstoodError("its GGUF header is cut off")
    return content.decode(errors="replace")


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    size = struct.calcsize(layout)
    content = file.read(size)
    if len(content) != size:
        raise NotUnderstoodError("its GGUF header is cut off")
    return struct.unpack(layout, content)


def _skip(file: BinaryIO, count: int) -> None:
    # Short values are read: moving in a file empties its buffer.
    done = len(file.read(count)) == count if count <= 1 << 16 else skip(file, count)
    if not done:
        raise NotUnderstoodError("its GGUF header is cut off")
