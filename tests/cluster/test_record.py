"""``gipfel record`` in real Slurm steps: one recorder per node, and signals that Slurm sends to all tasks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from one_machine import OneMachine, wait_until

from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_extension.telemetry.user_metrics import read_metrics

pytestmark = pytest.mark.cluster

_COUNTS = """
import os, signal, sys, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
open(sys.argv[1] + os.environ["SLURM_PROCID"], "w").close()
ends = time.monotonic() + 30
while not seen and time.monotonic() < ends:
    time.sleep(0.02)
time.sleep(0.6)
print(f"rank {os.environ['SLURM_PROCID']} got {len(seen)}", flush=True)
"""


def _record(folder: Path, *command: str) -> list[str]:
    options = ["--runs", str(folder / "runs"), "--interval", "0.1", "--source", "synthetic:training"]
    return [sys.executable, "-m", "gipfel_extension.cli", "record", *options, "--", *command]


def test_the_tasks_of_a_step_share_a_run_with_a_recorder_per_node(
    cluster: OneMachine, world_folder: Path
) -> None:
    code = "import os, time; from gipfel_widgets import log; log(loss=1.0); time.sleep(1)"
    argv = ["srun", "--nodes=2", "--ntasks-per-node=2", "--overcommit"]
    cluster.call([*argv, *_record(world_folder, sys.executable, "-c", code)], limit_s=60)
    (run,) = (world_folder / "runs").iterdir()
    record = json.loads((run / "record.json").read_text())
    assert record["nodes"] == list(cluster.node_names)
    assert run.name.endswith(f"-{record['job_id']}.0")
    segments = read_samples(run / "telemetry").segments
    assert sorted((each.provenance.node, each.state) for each in segments) == [
        (name, "closed") for name in cluster.node_names
    ]
    assert sorted((each.rank, each.node) for each in read_metrics(run).series) == [
        (0, "node01"), (1, "node01"), (2, "node02"), (3, "node02")
    ]  # fmt: skip


def test_what_slurm_sends_to_every_process_reaches_the_command_once(
    cluster: OneMachine, world_folder: Path
) -> None:
    command = _record(world_folder, sys.executable, "-c", _COUNTS, f"{world_folder}/ready")
    argv = ["srun", "--nodes=2", "--ntasks-per-node=1", "--job-name=counts", *command]
    process = subprocess.Popen(
        argv,
        env={**os.environ, **cluster.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert wait_until(lambda: len(list(world_folder.glob("ready?"))) == 2, 30)
        cluster.call(["scancel", "--name=counts", "--signal=USR1"])
        out, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert sorted(out.splitlines()) == ["rank 0 got 1", "rank 1 got 1"], told
    assert process.returncode == 0
