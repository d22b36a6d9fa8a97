"""Metrics of many records of a W&B file at once: numpy walks the rows of the history together, item by item.

A row is a protobuf ``HistoryRecord``: 1 items (1 ``key``, 2 ``nested_key``, 16 ``value_json``), in any order,
and 2 the step. Keys are recognised by their bytes, and numbers are parsed by Arrow. Rare cases (keys with
many components or of great length, damage) make a row *odd*: :func:`read_row` then reads it byte by byte, as
it reads all rows if there are only few. Both ways give the same values. Source:
wandb/proto/wandb_internal.proto of wandb 0.19.
"""

import json
import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .scalar import MAX_NAMES, NOTHING, Names, ScalarBatch, nanoseconds, number, step_number, times_of
from .tensorboard import fields, varint

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
#: Row, begin and end in the data.
Places = tuple[Integers, Integers, Integers]

#: With fewer rows, reading them one by one is as fast.
_FEW = 8
_RECORD_NUMBER, _HISTORY, _ITEM, _STEP_FIELD, _STEP_NUMBER = 0x08, 0x12, 0x0A, 0x12, 0x08
_KEY, _NESTED = 0x0A, 0x12
#: Components of a nested key, and bytes of a key with its protobuf tags; more make a row odd.
_PARTS, _KEY_BYTES = 8, 208
#: Number of 64-bit words for a key: one for its length, the others for its bytes.
_WORDS = 1 + _KEY_BYTES // 8
#: Appended to the data, so that bytes after any position can be read without a check for the end.
_PADDING = bytes(_PARTS * 256)
_MAX_DIGITS = 40
_NANS = (b"NaN", b'"NaN"')
_DIGITS = frozenset(b"0123456789-")
_IS_DIGIT = np.isin(np.arange(256), list(_DIGITS))
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_FACTORS = np.random.default_rng(0).integers(1 << 62, 1 << 63, _WORDS, np.uint64) | np.uint64(1)
#: Meanings of keys other than metrics; a metric's meaning is its index, from 0.
_IS_STEP, _IS_TIME, _IGNORED, _TOO_MANY = -1, -2, -3, -4


class HistoryRows:
    """Reader of records, which remembers the keys of its file.

    Attributes
    ----------
    damaged
        Rows that are not valid, and values of names beyond the limits.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._names = Names()
        self._labels: list[str] = []
        self._numbers: dict[str, int] = {}
        #: Sorted hashes of known keys; meaning and words of each.
        self._hashes = np.zeros(0, np.uint64)
        self._meanings = np.zeros(0, np.int64)
        self._words = np.zeros((0, _WORDS), np.uint64)
        self.damaged = 0

    def read(self, records: Sequence[bytes]) -> ScalarBatch:
        """Return the metrics of records in their order.

        Parameters
        ----------
        records
            Records, each preceded by one byte, the type of its fragment.
        """
        columns = _Columns()
        odd = np.ones(len(records), np.bool_)
        if len(records) >= _FEW:
            data = np.frombuffer(b"".join((*records, _PADDING)), np.uint8)
            ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
            histories, odd = _histories(data, np.concatenate([[0], ends[:-1]]) + 1, ends)
            items, steps = _items(data, histories, odd)
            self._add_values(data, self._values(data, items, odd), steps, columns)
        for each in np.flatnonzero(odd).tolist():
            self._add_odd(each, records[each], columns)
        return columns.batch(self._labels, self._rank)

    def _values(self, data: Bytes, items: Places, odd: Mask) -> tuple[Integers, ...]:
        """Return row, begin and length of the values, and the meanings of their keys; odd rows have none."""
        row, begin, end = items
        first = data[begin]
        after = begin + 2 + data[begin + 1]
        odd[row[((first != _KEY) & (first != _NESTED)) | (data[begin + 1] >= 0x80)]] = True
        nested = np.flatnonzero((first == _NESTED) & (data[after] == _NESTED))
        for _ in range(_PARTS - 2):
            if not len(nested):
                break
            at = after[nested]
            after[nested] = at + 2 + (data[at + 1] & 0x7F)
            odd[row[nested[data[at + 1] >= 0x80]]] = True
            nested = nested[data[after[nested]] == _NESTED]
        size, value = _varints(data, after + 2)
        wrong = (data[after] != 0x82) | (data[after + 1] != 0x01) | (value + size != end)
        odd[row[wrong | (after - begin > _KEY_BYTES)]] = True
        # Odd rows are skipped here and read one by one later.
        key = np.where(odd[row], 0, np.clip(after - begin, 0, _KEY_BYTES))
        meaning, known = self._meanings_of(data, begin, key)
        odd[row[~known]] = True
        fine = ~odd[row]
        return row[fine], value[fine], size[fine], meaning[fine]

    def _meanings_of(self, data: Bytes, begin: Integers, size: Integers) -> tuple[Integers, Mask]:
        """Return the meaning of each key, and whether it is known; learn new ones."""
        words = _words_of(data, begin, size)
        hashes = np.zeros(len(size), np.uint64)
        for word, factor in zip(words, _FACTORS, strict=False):
            mixed = (word ^ (word >> np.uint64(29))) * factor
            hashes += mixed ^ (mixed >> np.uint64(32))
        place, known = self._places(hashes)
        # Most files have all their keys in the first rows: look there first, so that sorting all is rarely
        # needed.
        for most in (_FEW * 64, len(size)):
            unknown = np.flatnonzero(~known)[:most]
            if len(unknown) and len(self._hashes) < 2 * MAX_NAMES:
                _, first = np.unique(hashes[unknown], return_index=True)
                new = unknown[np.sort(first)][: 2 * MAX_NAMES]
                table = np.zeros((len(new), _WORDS), np.uint64)
                table[:, : len(words)] = np.transpose([word[new] for word in words])
                keys = [data[begin[each] : begin[each] + size[each]].tobytes() for each in new.tolist()]
                self._learn(keys, table, hashes[new])
                place, known = self._places(hashes)
        if not len(self._hashes):
            return np.zeros(len(size), np.int64), known
        for each, word in enumerate(words):
            known &= word == self._words[place, each]
        return self._meanings[place], known

    def _places(self, hashes: NDArray[np.uint64]) -> tuple[Integers, Mask]:
        if not len(self._hashes):
            return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.bool_)
        place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return place, self._hashes[place] == hashes

    def _learn(self, keys: Sequence[bytes], words: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> None:
        meanings = np.array([self._meaning(_item(key)[0]) for key in keys], np.int64)
        hashes = np.concatenate([self._hashes, hashes])
        order = np.argsort(hashes)
        self._hashes = hashes[order]
        self._meanings = np.concatenate([self._meanings, meanings])[order]
        self._words = np.concatenate([self._words, words])[order]

    def _meaning(self, key: bytes) -> int:
        if key[:1] == b"_":
            return {b"_step": _IS_STEP, b"_timestamp": _IS_TIME}.get(key, _IGNORED)
        name = self._names.get(key)
        if name is None:
            return _TOO_MANY
        found = self._numbers.setdefault(name, len(self._labels))
        self._labels += [name] * (found == len(self._labels))
        return found

    def _add_values(
        self, data: Bytes, values: tuple[Integers, ...], steps: Integers, columns: "_Columns"
    ) -> None:
        row, value, size, meaning = values
        # A metric's value that is too long for a number is mostly a histogram.
        used = np.flatnonzero((meaning != _IGNORED) & ((size <= _MAX_DIGITS) | (meaning < 0)))
        row, value, size, meaning = row[used], value[used], size[used], meaning[used]
        numbers, valid = _numbers(data, value, size)
        times = np.full(len(steps), NOTHING)
        said = meaning == _IS_STEP
        steps[row[said]] = _steps(numbers[said])
        said = meaning == _IS_TIME
        times[row[said]] = times_of(numbers[said])
        self.damaged += int((valid & (meaning == _TOO_MANY)).sum())
        kept = valid & (meaning >= 0)
        row = row[kept]
        columns.add(row, meaning[kept], steps[row], times[row], numbers[kept])

    def _add_odd(self, row: int, record: bytes, columns: "_Columns") -> None:
        try:
            step, time_ns, values = read_row(record)
        except ValueError:
            self.damaged += 1
            return
        meanings = [self._meaning(key) for key, _ in values]
        self.damaged += meanings.count(_TOO_MANY)
        labels = [each for each in meanings if each >= 0]
        kept = [value for each, (_, value) in zip(meanings, values, strict=True) if each >= 0]
        whole = np.ones(len(labels), np.int64)
        columns.add(
            row * whole,
            np.array(labels, np.int64),
            (NOTHING if step is None else step) * whole,
            (NOTHING if time_ns is None else time_ns) * whole,
            np.array(kept, np.float64),
        )


class _Columns:
    """Collects values, and returns them in the order of their rows."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.generic], ...]] = []

    def add(
        self, row: Integers, label: Integers, step: Integers, time_ns: Integers, value: NDArray[np.float64]
    ) -> None:
        """Add values; all values of one row are added in one call, in their order."""
        self._parts.append((row, label, step, time_ns, value))

    def batch(self, labels: Sequence[str], rank: int | None) -> ScalarBatch:
        """Return all values, by row."""
        if not self._parts:
            return ScalarBatch(labels, [np.zeros(0, np.int64)] * 4, rank)
        columns = list(map(np.concatenate, zip(*self._parts, strict=True)))
        if len(self._parts) > 1:
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        return ScalarBatch(labels, columns[1:], rank)


def _histories(data: Bytes, begins: Integers, ends: Integers) -> tuple[Places, Mask]:
    """Return which records are rows of the history, where these begin and end, and which records are odd."""
    odd = np.zeros(len(begins), np.bool_)
    numbered = np.flatnonzero(data[begins] == _RECORD_NUMBER)
    at = begins.copy()
    said, at[numbered] = _varints(data, begins[numbered] + 1)
    odd[numbered[said < 0]] = True
    odd |= at > ends
    rows = np.flatnonzero(~odd & (at < ends) & (data[at] == _HISTORY))
    length, begin = _varints(data, at[rows] + 1)
    wrong = begin + length > ends[rows]
    odd[rows[wrong | (length < 0)]] = True
    fine = ~odd[rows]
    return (rows[fine], begin[fine], (begin + length)[fine]), odd


def _items(data: Bytes, histories: Places, odd: Mask) -> tuple[Places, Integers]:
    """Return row, begin and end of each item, in the order of the data, and each record's step field."""
    rows, begins, ends = histories
    found, steps = [(rows[:0],) * 3], np.full(len(odd), NOTHING)
    going = begins < ends
    rows, at, ends = rows[going], begins[going], ends[going]
    while len(rows):
        tag = data[at]
        length, begin = _varints(data, at + 1)
        end = begin + length
        good = ((tag == _ITEM) & (length > 1)) | (tag == _STEP_FIELD)
        good &= (length >= 0) & (end <= ends)
        # To continue for a few long rows would take longer than to read them one by one.
        if len(rows) < _FEW or len(found) > MAX_NAMES:
            good[:] = False
        stepped = np.flatnonzero(good & (tag == _STEP_FIELD))
        if len(stepped):
            value, after = _varints(data, begin[stepped] + 1)
            empty = length[stepped] == 0
            good[stepped] = empty | (
                (data[begin[stepped]] == _STEP_NUMBER) & (value >= 0) & (after == end[stepped])
            )
            steps[rows[stepped]] = np.where(empty, 0, value)
        odd[rows[~good]] = True
        item = good & (tag == _ITEM)
        found.append((rows[item], begin[item], end[item]))
        going = good & (end < ends)
        rows, at, ends = rows[going], end[going], ends[going]
    row, begin, end = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(begin, kind="stable")
    return (row[order], begin[order], end[order]), steps


def _varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the integers at some positions, -1 for those beyond 56 bits, and where they end."""
    value = data[at].astype(np.int64)
    after = at + 1
    longer = np.flatnonzero(value >= 0x80)
    value[longer] &= 0x7F
    for shift in range(7, 56, 7):
        if not len(longer):
            break
        byte = data[after[longer]].astype(np.int64)
        value[longer] |= (byte & 0x7F) << shift
        after[longer] += 1
        longer = longer[byte >= 0x80]
    value[longer] = -1
    return value, after


def _words_of(data: Bytes, begin: Integers, size: Integers) -> list[NDArray[np.uint64]]:
    """Return the words of some keys: their lengths, and their bytes by eight, padded with zeros."""
    view = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    words = [size.astype(np.uint64), view[begin] & _MASKS[np.minimum(size, 8)]]
    for offset in range(8, int(size.max(initial=0)), 8):
        longer = np.flatnonzero(size > offset)
        word = np.zeros(len(size), np.uint64)
        word[longer] = view[begin[longer] + offset] & _MASKS[np.minimum(size[longer] - offset, 8)]
        words.append(word)
    return words


def _numbers(data: Bytes, begin: Integers, size: Integers) -> tuple[NDArray[np.float64], Mask]:
    """Return the numbers in JSON texts, and a mask of the texts that are numbers, NaN included."""
    numbers = np.full(len(begin), math.nan)
    usual = _IS_DIGIT[data[begin]] & (size > 0) & (size <= _MAX_DIGITS)
    plain = np.flatnonzero(usual)
    numbers[plain] = _parsed(data, begin[plain], size[plain])
    valid = ~np.isnan(numbers)
    known: dict[bytes, float] = {}
    for index in np.flatnonzero(~usual).tolist():
        text = data[begin[index] : begin[index] + size[index]].tobytes()
        if text not in known:
            known[text] = _number(text)
        numbers[index] = known[text]
        valid[index] = text in _NANS or not math.isnan(known[text])
    return numbers, valid


def _parsed(data: Bytes, begin: Integers, size: Integers) -> NDArray[np.float64]:
    # Arrow's strings are contiguous, so every second string is the text between two numbers.
    offsets = np.zeros(2 * len(begin) + 1, np.int32)
    offsets[1::2], offsets[2::2] = begin, begin + size
    texts = pa.Array.from_buffers(
        pa.binary(), 2 * len(begin), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    ).take(pa.array(np.arange(1, 2 * len(begin), 2)))
    try:
        return np.asarray(texts.cast(pa.float64()))
    except pa.ArrowInvalid:
        return np.array([_number(text) for text in texts.to_pylist()], np.float64)


def _steps(numbers: NDArray[np.float64]) -> Integers:
    near = np.where(np.abs(numbers) < 2.0**63, numbers, 0.5)
    return np.where(near == np.floor(near), near, NOTHING).astype(np.int64)


def read_row(record: bytes) -> tuple[int | None, int | None, list[tuple[bytes, float]]]:
    """Return step, time and metrics of a record with a byte before it; none if it is not of the history.

    Raises
    ------
    ValueError
        It is cut off, or is not in this format.
    """
    # Fields are written in the order of their numbers, after the record's own number.
    position = 1
    if record[1:2] == b"\x08":
        _, position = varint(record, 2)
    field_2: int | None = None
    step: int | None = None
    said = False
    time_ns: int | None = None
    values: list[tuple[bytes, float]] = []
    if record[position : position + 1] != b"\x12":
        return step, time_ns, values
    length, position = varint(record, position + 1)
    for field, kind, part in fields(record[position : position + length]):
        if not isinstance(part, bytes) or kind != 2 or field not in (1, 2):
            raise ValueError("this field is not of a history")
        if field == 2:
            field_2 = step_number({each: value for each, _, value in fields(part)}.get(1, 0))
            continue
        key, text = _item(part)
        if key == b"_timestamp":
            time_ns = nanoseconds(_number(text))
        elif key == b"_step":
            step, said = step_number(_number(text)), True
        elif key[:1] != b"_":
            value = _number(text)
            if not math.isnan(value) or text in _NANS:
                values.append((key, value))
    return step if said else field_2, time_ns, values


def _item(item: bytes) -> tuple[bytes, bytes]:
    """Return the key and the JSON of an item of a history."""
    key, nested, text = b"", [], b""
    for field, kind, value in fields(item):
        if kind == 2 and isinstance(value, bytes):
            if field == 1:
                key = value
            elif field == 2:
                nested.append(value)
            elif field == 16:
                text = value
    return key or b".".join(nested), text


def _number(text: bytes) -> float:
    """Return a number of JSON; NaN for everything else."""
    try:
        if not text or len(text) > _MAX_DIGITS:
            return math.nan
        if text[0] in _DIGITS:
            return math.nan if b"_" in text else float(text)
        value = json.loads(text)
    except (ValueError, RecursionError):
        return math.nan
    if value in ("Infinity", "-Infinity"):
        return float(value)
    found = number(value)
    return math.nan if found is None else found
