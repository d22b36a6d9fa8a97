"""Record a real trace of four known kinds of work, for replay and for the score's tests."""

import json
import os
import time
from pathlib import Path

from machine import copy, multiply, recorder, tiny_kernels, torch

from gipfel_extension.telemetry.segments import read_parquet, read_samples, write_parquet

SECONDS = 10.0


def test_a_trace_of_known_work(tmp_path: Path) -> None:
    name = torch().cuda.get_device_name(0)
    phases = []
    with recorder(tmp_path, interval=0.2):
        for phase, work in (
            ("matmul bf16", multiply),
            ("device copy", copy),
            ("tiny kernels", tiny_kernels),
            ("idle", time.sleep),
        ):
            start = time.time_ns()
            work(SECONDS)
            phases.append({"phase": phase, "start_ns": start, "end_ns": time.time_ns()})
    table = read_samples(tmp_path)
    folder = Path(os.environ.get("OUT") or Path(__file__).resolve().parents[2] / "build/traces")
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join(name.lower().replace("nvidia", "").split()) + "-four-kinds-of-work"
    write_parquet(table, folder / f"{stem}.parquet")
    (folder / f"{stem}.json").write_text(
        json.dumps({"gpu": name, "source": table.source, "phases": phases}, indent=2)
    )
    again = read_parquet(folder / f"{stem}.parquet")
    assert again.rows == table.rows >= 4 * SECONDS / 0.2 * 0.8
    columns = again.of(again.gpus[0].uuid)
    for phase in phases:
        # The first and the last window of a phase hold some of its neighbours.
        inside = (columns["time_ns"] > phase["start_ns"] + 2e9) & (columns["time_ns"] < phase["end_ns"] - 5e8)
        means = {
            metric: round(float(columns[metric][inside].mean()), 3) for metric in ("GPU_UTIL", "SM_ACTIVE")
        }
        print(json.dumps({**phase, **means}))
        assert inside.sum() >= 10
