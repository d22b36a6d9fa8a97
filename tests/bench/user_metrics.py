"""Scalars per second of CPU that readers of users' metrics read, beside the packages' own readers.

Each of these is installed by pip into an environment of its own below ``build/peers``; where that can't be
done, and for the other formats, ``peer`` is the wanted 50 000. ``tests/extension/test_tracking_stores.py``
compares values. Prints rows as JSON.
"""

import json
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "parts"))

import numpy as np
from peer_environment import peer_python

from gipfel_extension.tracking import Follower
from gipfel_extension.tracking.find import Kind, log_kind
from gipfel_extension.tracking.tensorboard import masked_crcs
from gipfel_extension.tracking.text_formats import LogPattern

WANTED, TIMES_PEER = 50_000, 5
_ROWS, _METRICS = 10_000, 8
_BLOCK = 32 << 10
_INSTALL_S = 600
#: Programs that define ``read(path)``, which returns how many values were read by the package's own reader.
_PEERS = {
    "run.wandb": (
        # The last versions with a reader in Python; later ones have it in a program written in Go.
        ("wandb==0.19.11",),
        """
import json
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore
def read(path):
    store, record, values = DataStore(), wandb_internal_pb2.Record(), []
    store.open_for_scan(path)
    while (data := store.scan_data()) is not None:
        record.ParseFromString(data)
        items = record.history.item
        row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
        step, time = row.get("_step"), row.get("_timestamp")
        values += [(name, step, time, value) for name, value in row.items() if name[0] != "_"]
    return len(values)
""",
    ),
    "events.out.tfevents.1": (
        ("tensorboard",),
        """
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray
def read(path):
    return sum(
        len([(value.tag, event.step, event.wall_time, make_ndarray(value.tensor).item()) for value in
             event.summary.value])
        for event in EventFileLoader(path).Load()
    )
""",
    ),
}
_MEASURE = """
import sys, time
def speed():
    began = time.process_time()
    count = read(sys.argv[1])
    return count / (time.process_time() - began)
print(max(speed() for _ in range(5)))
"""


def main() -> int:
    """Print the rows; 1 where a bound does not hold."""
    rows = []
    pattern = log_kind(LogPattern(r"step (?P<step>\d+) loss (?P<loss>\S+) lr (?P<lr>\S+)"))
    with tempfile.TemporaryDirectory() as folder:
        for name, write in _WRITERS.items():
            path = Path(folder, name)
            write(path)
            speed = max(_speed(path, pattern if name.endswith(".log") else None) for _ in range(5))
            theirs = _peer_speed(name, path)
            peer, bound = (WANTED, 1) if theirs is None else (theirs, TIMES_PEER)
            rows.append(
                {
                    "name": f"metrics of {name}",
                    "ours": round(speed),
                    "peer": round(peer),
                    "unit": "scalars/s of CPU",
                    "ratio": round(speed / peer, 2),
                    "bound": float(bound),
                    "holds": speed >= bound * peer and speed >= WANTED,
                }
            )
    for row in rows:
        print(json.dumps(row), flush=True)
    return 0 if all(row["holds"] for row in rows) else 1


def _peer_speed(name: str, path: Path) -> float | None:
    if name not in _PEERS:
        return None
    requirements, program = _PEERS[name]
    python = peer_python(requirements[0], requirements, _INSTALL_S)
    if python is None:
        return None
    done = subprocess.run(
        [python, "-c", program + _MEASURE, path], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1][:200]
        print(f"{requirements[0]} is left out: {last}", file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def _speed(path: Path, kind: Kind | None) -> float:
    began = time.process_time()
    follower = Follower()
    follower.add(path, kind)
    count = sum(sum(1 for _ in found) for _, found in follower.poll(last=True))
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


def _events(path: Path) -> None:
    events = []
    for step in range(_ROWS):
        for number in range(_METRICS):
            value = (
                b"\x0a" + _sized(b"metric_%d" % number) + b"\x15" + struct.pack("<f", 1 / (step + number + 1))
            )
            event = b"\x09" + struct.pack("<d", 1.8e9 + step) + b"\x10" + _varint(step)
            events.append(event + b"\x2a" + _sized(b"\x0a" + _sized(value)))
    path.write_bytes(b"".join(_frame(event) for event in events))


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    checks = [masked_crcs(np.frombuffer(part, np.uint8)[None, :])[0].tobytes() for part in (length, data)]
    return length + checks[0] + data + checks[1]


def _csv(path: Path) -> None:
    names = ",".join(f"metric_{number}" for number in range(_METRICS))
    lines = [",".join(f"{1 / (step + n + 1)!r}" for n in range(_METRICS)) for step in range(_ROWS)]
    path.write_text("".join([f"step,{names}\n", *(f"{step},{line}\n" for step, line in enumerate(lines))]))


def _json_rows() -> list[dict[str, float]]:
    return [{"step": s, **{f"metric_{n}": 1 / (s + n + 1) for n in range(_METRICS)}} for s in range(_ROWS)]


def _json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in _json_rows()))


def _state(path: Path) -> None:
    path.write_text(json.dumps({"log_history": _json_rows()}, indent=2))


_WRITERS = {
    "run.wandb": _wandb,
    "events.out.tfevents.1": _events,
    "mlflow.db": _database,
    "train.log": _log,
    "metrics.csv": _csv,
    "log.jsonl": _json_lines,
    "trainer_state.json": _state,
}

if __name__ == "__main__":
    sys.exit(main())
