"""Real traces of known work, the score of each beside the plain utilization, and files for `replay:`.

They go to `$GIPFEL_TRACES`, else to `$OUT`, else to `build/traces`: one Parquet file each, named by GPU and
work, with the driver in its source, and a JSON file of what was done beside it.
"""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from known_work import WORK, Expected
from machine import driver_version, recorder, torch

from gipfel_extension.saturation import JobScore, score_table
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.telemetry.store.parquet import read_parquet, write_parquet
from gipfel_extension.telemetry.store.segments import read_samples

SECONDS = 12.0
#: The first windows hold some of what was before, and of the GPU's clocks' way up.
_LEAD_NS = 2 * 10**9
_TAIL_NS = 5 * 10**8
_DONE: dict[str, tuple[SampleTable, object]] = {}


def folder() -> Path:
    """Return where traces go."""
    given = os.environ.get("GIPFEL_TRACES") or os.environ.get("OUT")
    found = Path(given) if given else Path(__file__).resolve().parents[2] / "build/traces"
    found.mkdir(parents=True, exist_ok=True)
    return found


def recorded(name: str, place: Path) -> tuple[SampleTable, object]:
    """The trace of one work, recorded once."""
    if name not in _DONE:
        work, _ = WORK[name]
        gpu = torch().cuda.get_device_name(0)
        with recorder(place, interval=0.2, sources=("host", "nvml"), root_pid=os.getpid()):
            start_ns = time.time_ns()
            done = work(SECONDS)
            end_ns = time.time_ns()
        table = read_samples(place).between(start_ns + _LEAD_NS)
        columns = {
            uuid: {key: column[own["time_ns"] < end_ns - _TAIL_NS] for key, column in own.items()}
            for uuid, own in (table.columns or {}).items()
        }
        source = f"{table.source}, driver {driver_version()}"
        table = replace(table, columns=columns, source=source, segments=())
        stem = "-".join(gpu.lower().replace("nvidia", "").split()) + f"-{name}"
        write_parquet(table, folder() / f"{stem}.parquet")
        about = {"gpu": gpu, "source": source, "work": name, "seconds": SECONDS, "done": done}
        (folder() / f"{stem}.json").write_text(json.dumps(about, indent=2) + "\n")
        again = read_parquet(folder() / f"{stem}.parquet")
        assert again.rows == table.rows >= 2 * SECONDS / 0.2 * 0.6
        _DONE[name] = (again, done)
    return _DONE[name]


def judged(name: str, table: SampleTable) -> JobScore:
    """The score of a trace's first GPU, printed beside its utilization."""
    job = score_table(replace(table, devices=(*table.hosts, table.gpus[0])))
    assert job.total is not None
    score = job.gpus[0]
    largest = max(job.total.losses, key=lambda loss: job.total.losses[loss])
    said = {
        "trace": name,
        "score": round(job.total.score, 1),
        "utilization": score.utilization,
        "binding": {resource: round(share, 3) for resource, share in job.total.binding.items()},
        "largest_loss": largest,
        "losses": {loss: round(points, 1) for loss, points in job.total.losses.items()},
    }
    print(json.dumps(said), flush=True)
    return job


def check(name: str, place: Path) -> None:
    """Return what is known of the work against what the score says."""
    job = judged(name, recorded(name, place)[0])
    expected: Expected = WORK[name][1]
    total = job.total
    assert total is not None
    assert expected.least <= total.score <= expected.most, (name, total.score)
    assert abs(total.score + sum(total.losses.values()) - 100) <= 0.1
    if expected.binding:
        assert max(total.binding, key=lambda resource: total.binding[resource]) == expected.binding
    if expected.loss:
        assert max(total.losses, key=lambda loss: total.losses[loss]) == expected.loss, total.losses


def test_a_large_matmul(tmp_path: Path) -> None:
    check("matmul-bf16", tmp_path)


def test_a_device_copy(tmp_path: Path) -> None:
    check("device-copy", tmp_path)


def test_tiny_kernels(tmp_path: Path) -> None:
    check("tiny-kernels", tmp_path)


def test_a_starved_training_step(tmp_path: Path) -> None:
    check("starved", tmp_path)


def test_sleep(tmp_path: Path) -> None:
    check("idle", tmp_path)


def test_utilization_cannot_tell_two_optimizers_apart_and_the_score_can(tmp_path: Path) -> None:
    found = {}
    for name in ("optimizer-fused", "optimizer-unfused"):
        table, rate = recorded(name, tmp_path / name)
        job = judged(name, table)
        assert job.total is not None
        found[name] = (job.total.score, job.gpus[0].utilization, rate)
    print(json.dumps(found), flush=True)
    fused, unfused = found["optimizer-fused"], found["optimizer-unfused"]
    assert fused[2] > 1.2 * unfused[2]
    assert fused[0] > unfused[0]
    assert abs(fused[1] - unfused[1]) < 0.15
