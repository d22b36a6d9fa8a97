"""Judge array and graph files: NumPy's ``.npy``, which may contain a pickle, safetensors, GGUF and ONNX.

Of GGUF's metadata, the chat templates are judged, since they are programs. Of ONNX, the paths of tensors
outside the file and the operators from other domains are judged. Sources: docs/gguf.md of ggml-org/ggml;
onnx/onnx.proto of onnx/onnx, of which only the fields below are read.
"""

import ast
import io
import json
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from ..model import Finding, Judgement, Verdict
from .configs import template_findings
from .streams import Budget, NotUnderstoodError, skip

_MAX_NPY_HEADER_BYTES = 1 << 20
_MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
_MAX_READ_HEADER_BYTES = 64 << 20


def npy_holds_objects(file: BinaryIO) -> bool:
    """Return whether a pickle of objects follows the header; the file's position is then at the pickle.

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


def judge_object_array(inner: Judgement) -> Judgement:
    """Return the judgement on an array of objects, given the judgement on its pickle."""
    finding = Finding(
        rule="numpy-objects",
        severity="high",
        message="It is an array of Python objects, which NumPy loads by unpickling.",
        fix="Save plain arrays, and load with allow_pickle=False.",
    )
    return Judgement.union([Judgement.of([("needs code", finding)]), inner])


def scan_safetensors(file: BinaryIO, size: int) -> Judgement:
    """Judge a safetensors file: it is not understood unless its header describes all of its bytes.

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


#: Size in bytes of a GGUF value by its type number; type 8 is text and 9 an array.
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
    # Read short values instead of seeking, which would discard the file's buffer.
    done = len(file.read(count)) == count if count <= 1 << 16 else skip(file, count)
    if not done:
        raise NotUnderstoodError("its GGUF header is cut off")


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: The fields of protobuf to read, by message type and field number: the type of a nested message, or
#: ``=name`` for a text. Others are skipped.
_MODEL = {7: "graph", 8: "opset", 25: "function"}
_FIELDS: dict[str, dict[int, str]] = {
    "model": _MODEL,
    "opset": {1: "=domain"},
    "function": {7: "node", 10: "=domain"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute", 7: "=domain"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
    "external": {1: "=key", 2: "=value"},
}
_KNOWN_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
)
_MAX_FIELDS, _MAX_DEPTH, _MAX_TEXT_BYTES = 5_000_000, 32, 1 << 16


def scan_onnx(file: BinaryIO, size: int, budget: Budget) -> Judgement:
    """Judge an ONNX file."""
    locations: dict[str, None] = {}
    domains: dict[str, None] = {}
    reader = _Reader(file, budget)
    entry: dict[str, list[str]] = {"=key": [], "=value": []}
    for message, name, text in reader.read("model", 0, size, 0):
        if message != "external":
            domains.setdefault(text)
        elif name:
            entry[name].append(text)
        else:
            # Fields may come in any order and repeat. Not all programs take the last one, so each counts.
            if "location" in entry["=key"]:
                locations.update(dict.fromkeys(entry["=value"]))
            entry = {"=key": [], "=value": []}
    if not reader.has_graph:
        raise NotUnderstoodError("it has no ONNX graph")
    return Judgement.of([*_outside(locations), *_foreign(domains)])


def _outside(locations: dict[str, None]) -> Iterator[tuple[Verdict, Finding]]:
    for location in locations:
        path = PurePosixPath(location.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in location:
            yield (
                "malicious",
                Finding(
                    rule="onnx-path",
                    severity="critical",
                    message=f"It reads a tensor from {location[:200]!r}, outside of the model's directory.",
                    fix="Don't load it; report it to its publisher.",
                ),
            )


def _foreign(domains: dict[str, None]) -> Iterator[tuple[Verdict, Finding]]:
    foreign = [
        each for each in domains if each not in _KNOWN_DOMAINS and not each.startswith("com.microsoft")
    ]
    if foreign:
        yield (
            "needs code",
            Finding(
                rule="onnx-operators",
                severity="high",
                message=f"It needs operators of {', '.join(each[:80] for each in foreign[:9])}.",
                fix="Install a library with these operators only from a source you trust.",
            ),
        )


class _Reader:
    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self._file, self._budget = file, budget
        self._fields = 0
        self.has_graph = False

    def read(self, message: str, start: int, end: int, depth: int) -> Iterator[tuple[str, str, str]]:
        """Yield (message type, field, text) of each text between two offsets.

        After a message `external`, ("external", "", "") follows.
        """
        if depth > _MAX_DEPTH:
            raise NotUnderstoodError("its graphs are nested too deeply")
        at = start
        while at < end:
            self._fields += 1
            if self._fields > _MAX_FIELDS:
                raise NotUnderstoodError("its graph is too large")
            if self._fields % 4096 == 0:
                self._budget.check_time()
            self._file.seek(at)
            tag = self._varint()
            kind, inner = tag & 7, _FIELDS[message].get(tag >> 3, "")
            length = self._length(kind)
            at = self._file.seek(0, io.SEEK_CUR) + length
            if at > end or tag >> 3 == 0:
                raise NotUnderstoodError("its protobuf is broken")
            self.has_graph |= inner == "graph" and message == "model"
            if kind == _BYTES and inner.startswith("="):
                yield message, inner, self._file.read(min(length, _MAX_TEXT_BYTES)).decode(errors="replace")
            elif kind == _BYTES and inner:
                yield from self.read(inner, at - length, at, depth + 1)
                if inner == "external":
                    yield inner, "", ""

    def _length(self, kind: int) -> int:
        if kind == _BYTES:
            return self._varint()
        if kind == _VARINT:
            self._varint()
            return 0
        if kind in (_FIXED64, _FIXED32):
            return 8 if kind == _FIXED64 else 4
        raise NotUnderstoodError("its protobuf is broken")

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._file.read(1)
            if not byte:
                break
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise NotUnderstoodError("its protobuf is broken")
