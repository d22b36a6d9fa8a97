"""CPU time of the report on a hang from flight recorder dumps: 16 ranks, and 1 024 made ones.

The dumps have the form of torch's own pickles, which name only texts and repeated frames in their memo: full
buffers of 2 000 calls with 12 frames each for 16 ranks, and 400 calls for 1 024 ranks. One rank has not made
the last call. Prints rows as JSON.
"""

import json
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gipfel_extension.training.flight_recorder import report_of

_FRAMES = [
    {"name": f"step{n}", "filename": f"/project/src/train{n % 4}.py", "line": 10 * n} for n in range(12)
]
_START_NS = 1_800_000_000 * 10**9


def main() -> int:
    """Measure; 1 where a bound does not hold."""
    rows = [_row(16, 2000, 1.0), _row(1024, 400, 10.0)]
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


def _row(ranks: int, calls: int, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-") as name:
        folder = Path(name)
        for rank in range(ranks):
            (folder / f"rank_{rank}").write_bytes(_dump(rank, ranks, calls))
        began = time.process_time()
        report = report_of(folder)
        took = time.process_time() - began
    assert [each.rank for each in report.faulty_ranks] == [3], report.lines
    return {
        "name": f"flight recorder: {ranks} dumps of {calls} calls",
        "ours": round(took, 3),
        "peer": limit_s,
        "unit": "s of CPU",
        "ratio": took / limit_s,
        "bound": 1.0,
        "holds": took <= limit_s,
    }


def _dump(rank: int, ranks: int, calls: int) -> bytes:
    made = calls - (rank == 3)
    entries = [_entry(number, finished=number < calls) for number in range(1, made + 1)]
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    return TorchPickle().dump(
        {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": entries}
    )


def _entry(number: int, *, finished: bool) -> dict[str, Any]:
    return {
        "frames": _FRAMES, "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"),
        "thread_name": "pt_main_thread", "thread_id": "140189387426688", "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce",
        "time_created_ns": _START_NS + number * 10**9, "input_sizes": [[1024, 64]], "input_dtypes": ["Float"],
        "output_sizes": [[1024, 64]], "output_dtypes": ["Float"],
        "state": "completed" if finished else "started",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": _START_NS + number * 10**9 + 10**7 if finished else None,
        "retired": finished, "timeout_ms": 600000, "is_p2p": False,
    }  # fmt: skip


class TorchPickle:
    """Writer of a pickle as torch's C++ code makes it: a memo of texts and of dictionaries that repeat."""

    def __init__(self) -> None:
        self._memo: dict[object, int] = {}
        self._out = bytearray(b"\x80\x02")

    def dump(self, value: Any) -> bytes:
        """Return the pickle of a value."""
        self._write(value)
        return bytes(self._out) + b"."

    def _write(self, value: Any) -> None:
        known = (
            self._memo.get(id(value) if isinstance(value, dict) else value)
            if isinstance(value, str | dict)
            else None
        )
        if known is not None:
            self._out += b"h" + bytes([known]) if known < 256 else b"j" + struct.pack("<I", known)
        elif value is None or isinstance(value, bool):
            self._out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, str):
            data = value.encode()
            self._out += b"X" + struct.pack("<I", len(data)) + data
            self._name(value)
        elif isinstance(value, tuple):
            for each in value:
                self._write(each)
            self._out += b"\x86"
        elif isinstance(value, list):
            self._out += b"]("
            for each in value:
                self._write(each)
            self._out += b"e"
        else:
            self._out += b"}("
            for key, each in value.items():
                self._write(key)
                self._write(each)
            self._out += b"u"
            if "filename" in value:
                self._name(id(value))

    def _integer(self, value: int) -> None:
        if value < 256:
            self._out += b"K" + bytes([value])
        elif value < 1 << 16:
            self._out += b"M" + struct.pack("<H", value)
        elif value < 1 << 31:
            self._out += b"J" + struct.pack("<i", value)
        else:
            self._out += b"\x8a\x08" + struct.pack("<q", value)

    def _name(self, key: object) -> None:
        number = self._memo[key] = len(self._memo)
        self._out += b"q" + bytes([number])


if __name__ == "__main__":
    sys.exit(main())
