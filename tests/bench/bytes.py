"""Bytes on disk for each value that was recorded: while a run goes on, and when it has ended.

Prints two rows as JSON. An hour of a node with four GPUs at 1 Hz, whose values are made up: noise wherever a
GPU that trains shows some. Summaries are counted.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "parts"))

from many_nodes import record_node  # noqa: E402

from gipfel_extension.telemetry.compaction import compact  # noqa: E402
from gipfel_extension.telemetry.segments import read_samples  # noqa: E402

LIVE, CLOSED = 10.0, 2.0


def main(seconds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded = record_node(folder, seconds)
        live = _size(folder)
        before = read_samples(folder).rows
        if compact(folder).converted != 1 or read_samples(folder).rows != before:
            raise SystemExit("The segment did not become Parquet.")
        closed = _size(folder)
    rows = [
        _row("bytes a value of a run that goes on, of 10", live / recorded.values, LIVE),
        _row("bytes a value of a run that has ended, of 2", closed / recorded.values, CLOSED),
    ]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _row(name: str, ours: float, limit: float) -> dict[str, object]:
    ratio = ours / limit
    return {
        "name": name,
        "ours": ours,
        "peer": limit,
        "unit": "B",
        "ratio": ratio,
        "bound": 1.0,
        "holds": ratio <= 1,
    }


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3600))
