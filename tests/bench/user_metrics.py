"""Scalars per second of CPU that readers of users' metrics read, beside the wanted 50 000.

``tests/extension/test_tracking_stores.py`` compares values. Prints rows as JSON.
"""

import json
import sqlite3
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path

from gipfel_extension.tracking import Follower
from gipfel_extension.tracking.find import Kind, log_kind
from gipfel_extension.tracking.text_formats import LogPattern

WANTED = 50_000
_ROWS, _METRICS = 10_000, 8
_BLOCK = 32 << 10


def main() -> int:
    """Print the rows; 1 where a bound does not hold."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in (
            ("run.wandb", None),
            ("mlflow.db", None),
            ("train.log", log_kind(LogPattern(r"step (?P<step>\d+) loss (?P<loss>\S+) lr (?P<lr>\S+)"))),
        ):
            path = Path(folder, name)
            _WRITERS[name](path)
            speed = max(_speed(path, kind) for _ in range(3))
            rows.append(
                {
                    "name": f"metrics of {name}",
                    "ours": round(speed),
                    "peer": WANTED,
                    "unit": "scalars/s of CPU",
                    "ratio": round(speed / WANTED, 2),
                    "bound": 1.0,
                    "holds": speed >= WANTED,
                }
            )
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


def _speed(path: Path, kind: Kind | None) -> float:
    began = time.process_time()
    follower = Follower()
    follower.add(path, kind)
    count = sum(len(found) for _, found in follower.poll(last=True))
    return count / (time.process_time() - began)


def _wandb(path: Path) -> None:
    out = bytearray(b":W&B\xe1\xbe\x00")
    for step in range(_ROWS):
        values = {b"_step": b"%d" % step, b"_timestamp": b"1800000000.25"}
        values |= {b"metric_%d" % number: b"%.17g" % (1 / (step + number + 1)) for number in range(_METRICS)}
        items = (b"\x0a" + _sized(key) + b"\x82\x01" + _sized(text) for key, text in values.items())
        history = b"".join(b"\x0a" + _sized(item) for item in items)
        record = b"\x12" + _varint(len(history)) + history
        begun = False
        while True:
            left = _BLOCK - len(out) % _BLOCK
            if left < 7:
                out += bytes(left)
                continue
            part, record = record[: left - 7], record[left - 7 :]
            kind = (3 if begun else 2) if record else (4 if begun else 1)
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            begun = True
            if not record:
                break
    path.write_bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE runs (run_uuid, name)")
    database.execute(
        "CREATE TABLE metrics (key, value, timestamp, step, is_nan, run_uuid, "
        "PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan))"
    )
    rows = [
        (f"metric_{number}", 1 / (step + 1), 1_800_000_000_000 + step, step, 0, "run")
        for step in range(_ROWS)
        for number in range(_METRICS)
    ]
    database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.commit()
    database.close()


def _log(path: Path) -> None:
    with path.open("w") as file:
        file.writelines(
            f"2026-01-01 INFO step {step} loss {1 / (step + 1):.6f} lr 3e-4 and more\n"
            for step in range(4 * _ROWS)
        )


_WRITERS = {"run.wandb": _wandb, "mlflow.db": _database, "train.log": _log}

if __name__ == "__main__":
    sys.exit(main())
