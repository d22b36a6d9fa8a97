"""ONNX files: where their tensors lie outside of the file, and whose operators they need.

Reads protobuf's wire format, and of it only the fields below. Source: onnx/onnx.proto of onnx/onnx.
"""

import io
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from ..model import Finding, Judgement, Verdict
from .streams import Budget, NotUnderstoodError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Message → field → what it holds: another message, or a text under a name.
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
            # Fields come in any order, also twice: the last one counts, but not in all programs.
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
                fix="Install that library only from a source you trust.",
            ),
        )


class _Reader:
    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self._file, self._budget = file, budget
        self._fields = 0
        self.has_graph = False

    def read(self, message: str, start: int, end: int, depth: int) -> Iterator[tuple[str, str, str]]:
        """Yield message, field and text of each text between two offsets; "external" alone at its end."""
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
