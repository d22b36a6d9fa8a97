"""Bytes on disk per recorded value: of a running recording, and of one that has ended.

Prints rows as JSON: of an hour of a node with four GPUs at 1 Hz, summaries counted, with the parts of the
score of ten samples a second; and of those samples, six minutes of which are measured. No value is of a real
GPU. Those named "noise" are random in almost every metric, link traffic over its whole range, which is the
worst that can be; "synthetic" ones are of the source synthetic:training, whose noise is 2 %.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "parts"))

from many_nodes import Made, fine_samples, node_samples, record_node, synthetic_samples  # noqa: E402

from gipfel_extension.telemetry.store.compaction import compact  # noqa: E402
from gipfel_extension.telemetry.store.segments import read_samples  # noqa: E402

LIVE, CLOSED = 10.0, 2.0


def main(seconds: int) -> int:
    """Measure; 1 where a bound does not hold."""
    rows = []
    for name, made in (("noise", node_samples), ("synthetic", synthetic_samples)):
        with tempfile.TemporaryDirectory() as place:
            live, closed = _per_value(Path(place), seconds, made)
        rows += [
            _row(f"bytes a value of a run that goes on, {name}, of 10", live, LIVE),
            _row(f"bytes a value of a run that has ended, {name}, of 2", closed, CLOSED),
        ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recorded = record_node(folder, max(1, seconds // 10), flush=20, made=fine_samples, fine=True)
        ours = _size(folder) / recorded.values
    rows.append(_row("bytes a value of samples at 10 Hz, synthetic, of 10", ours, LIVE))
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _per_value(folder: Path, seconds: int, made: Made) -> tuple[float, float]:
    recorded = record_node(folder, seconds, made=made)
    live = _size(folder)
    before = read_samples(folder).rows
    if compact(folder).converted != 1 or read_samples(folder).rows != before:
        raise SystemExit("The segment did not become Parquet.")
    return live / recorded.values, _size(folder) / recorded.values


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
