"""Time to the first figure of 1 024 GPUs over an hour at 1 Hz, from summaries; then of a minute of samples.

Prints rows as JSON: of a run that goes on, and of one that has ended; values are made up. Reading and making
the figures count; the best of five does. The minute is read from the samples, of all GPUs; its limit is our
own.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "parts"))

from many_nodes import START_NS, copy_node, record_node  # noqa: E402

from gipfel_extension.telemetry.figures.heat import heat_figure  # noqa: E402
from gipfel_extension.telemetry.figures.lines import (  # noqa: E402
    GPU_LINES,
    HOST_LINES,
    IO_LINES,
    coarsened,
)
from gipfel_extension.telemetry.figures.run_figures import host_figure, job_figure  # noqa: E402
from gipfel_extension.telemetry.store.compaction import compact  # noqa: E402
from gipfel_extension.telemetry.store.overview import read_overview  # noqa: E402

LIMIT_S, ZOOM_S = 1.0, 5.0
NODES, GPUS, SECONDS = 256, 4, 3600
ROUNDS = 5
_LINES = (*GPU_LINES, *HOST_LINES, *IO_LINES)
_METRICS = tuple(dict.fromkeys(name for line in _LINES for name in (line.metric, line.percent_of) if name))


def main() -> int:
    """Measure; 1 where the bound does not hold."""
    rows = []
    for state in ("goes on", "has ended"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            record_node(folder, SECONDS, gpus=GPUS)
            copy_node(folder, NODES)
            if state == "has ended":
                compact(folder)
            whole = min(_seconds(folder) for _ in range(ROUNDS))
            minute = min(_seconds(folder, zoom=True) for _ in range(ROUNDS))
        rows += [
            _row(f"first picture of 1 024 GPUs x 1 h, run {state}, of 1 s", whole, LIMIT_S),
            _row(f"a minute of it from the samples, run {state}, of 5 s", minute, ZOOM_S),
        ]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def _row(name: str, ours: float, limit: float) -> dict[str, object]:
    return {
        "name": name,
        "ours": ours,
        "peer": limit,
        "unit": "s",
        "ratio": ours / limit,
        "bound": 1.0,
        "holds": ours <= limit,
    }


#: Greatest width of a bucket in a figure of one minute.
_FINE_NS = 2 * 10**9


def _seconds(folder: Path, *, zoom: bool = False) -> float:
    middle = START_NS + SECONDS // 2 * 10**9
    span = (middle, middle + 60 * 10**9) if zoom else (None, None)
    start = time.perf_counter()
    overview = read_overview(folder, start_ns=span[0], end_ns=span[1], metrics=_METRICS)
    figures = [
        job_figure(overview),
        host_figure(overview),
        heat_figure(coarsened(overview, 120), "SM_ACTIVE"),
    ]
    seconds = time.perf_counter() - start
    is_fine = overview.bucket_ns <= _FINE_NS
    if len(overview.devices) != NODES * (GPUS + 1) or is_fine != zoom or not all(figures):
        raise SystemExit("It is not the picture of all GPUs.")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
