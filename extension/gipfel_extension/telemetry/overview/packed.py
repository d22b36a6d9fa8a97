"""Summaries of closed segments, packed: a piece per metric, so that a picture unpacks only what it shows."""

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

MAGIC = b"GIPFSUM2"

#: Of a mean's 23 bits after the leading one, those that are dropped: what stays is 0.05 % off at most, less
#: than a pixel of a picture.
_DROPPED = 13
#: 0.01 s for a day in buckets of 10 s.
_MOST_RECORDS = 10_000_000
#: Values of one metric: a day of 1 900 devices in buckets of 10 s.
_MOST_CELLS = 1 << 24


def pack(head: dict[str, Any], series: Sequence[tuple[str, str]], arrays: Sequence[NDArray[Any]]) -> bytes:
    """A file's content.

    Parameters
    ----------
    arrays
        Starts of the buckets; means, lowest and highest values, and counts, records by series.
    """
    start_ns, mean, low, high, count = arrays
    pieces = [zlib.compress(np.diff(start_ns, prepend=0).astype("<i8").tobytes(), 9)]
    for columns in _columns(series).values():
        floats = [_shuffled(each[:, columns]) for each in (mean, low, high)]
        counts = np.ascontiguousarray(count[:, columns].T).astype("<u2").tobytes()
        pieces.append(zlib.compress(b"".join([*floats, counts]), 9))
    sizes = [len(piece) for piece in pieces]
    content = json.dumps({**head, "records": len(start_ns), "sizes": sizes}).encode()
    return b"".join([MAGIC, len(content).to_bytes(4, "little"), content, *pieces])


def unpack(
    file: BinaryIO, head: dict[str, Any], series: Sequence[tuple[str, str]], wanted: Iterable[str] | None
) -> tuple[list[tuple[str, str]], tuple[NDArray[Any], ...]]:
    """Series and arrays of some metrics, all where `wanted` is None; `file` stands after the head.

    Raises
    ------
    ValueError
        A piece is damaged.
    """
    records, sizes = int(head["records"]), [int(size) for size in head["sizes"]]
    places = _columns(series)
    if not 0 <= records <= _MOST_RECORDS or len(sizes) != 1 + len(places) or min(sizes) < 0:
        raise ValueError("its pieces are not ours")
    start_ns = np.cumsum(np.frombuffer(_piece(file, sizes[0], 8 * records), "<i8"))
    chosen = set(places) if wanted is None else set(wanted)
    found: list[tuple[str, str]] = []
    blocks: list[list[NDArray[Any]]] = [[], [], [], []]
    for (metric, columns), size in zip(places.items(), sizes[1:], strict=True):
        if metric not in chosen:
            file.seek(size, 1)
            continue
        cells = records * len(columns)
        if cells > _MOST_CELLS:
            raise ValueError("its pieces are too large")
        content = _piece(file, size, 14 * cells)
        for place in range(3):
            floats = np.frombuffer(content, np.uint8, 4 * cells, 4 * cells * place).reshape(4, cells)
            values = np.ascontiguousarray(floats.T).view("<f4").reshape(len(columns), records)
            blocks[place].append(values.T)
        counts = np.frombuffer(content, "<u2", cells, 12 * cells).reshape(len(columns), records)
        blocks[3].append(counts.T)
        found += [series[column] for column in columns]
    arrays = [np.concatenate(block, axis=1) if block else np.zeros((records, 0)) for block in blocks]
    return found, (start_ns, *arrays)


def _columns(series: Sequence[tuple[str, str]]) -> dict[str, list[int]]:
    """The columns of each metric."""
    found: dict[str, list[int]] = {}
    for column, (_, metric) in enumerate(series):
        found.setdefault(metric, []).append(column)
    return found


def _shuffled(values: NDArray[np.float32]) -> bytes:
    """A column after the other, rounded, the bytes of equal weight side by side."""
    bits = np.ascontiguousarray(values.T, "<f4").view(np.uint32)
    half = np.uint32(1 << (_DROPPED - 1))
    rounded = ((bits + half) >> np.uint32(_DROPPED)) << np.uint32(_DROPPED)
    kept = np.where(np.isfinite(values.T), rounded, bits)
    return np.ascontiguousarray(kept.view(np.uint8).reshape(-1, 4).T).tobytes()


def _piece(file: BinaryIO, size: int, length: int) -> bytes:
    try:
        # No longer than announced: a small piece can be made to unpack without an end, and what is packed is
        # hardly ever longer than what it holds.
        packed = file.read(min(size, length + (length >> 8) + 64))
        content = zlib.decompressobj().decompress(packed, length + 1)
    except zlib.error as error:
        raise ValueError("a piece of it is damaged") from error
    if len(content) != length:
        raise ValueError("a piece of it is damaged")
    return content
