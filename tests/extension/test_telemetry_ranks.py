"""Ranks, XIDs and metrics on request: a recorder over the C interface of a stand-in for NVML."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import nvml_stand_in
from recorder_process import kinds, running, until

from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.gpu_processes import GpuProcessFile, read_gpu_processes
from gipfel_extension.telemetry.ranks import gpu_uuids_by_rank, read_ranks
from gipfel_extension.telemetry.store.segments import read_samples


def test_ranks_xids_and_metrics_on_request_over_the_c_interface(tmp_path: Path) -> None:
    library = nvml_stand_in.build(tmp_path)
    folder, pids, xids = tmp_path / "telemetry", tmp_path / "pids", tmp_path / "xids"
    environment = {
        **nvml_stand_in.environment(library, gpus=4),
        "NVML_STAND_IN_PIDS": str(pids),
        "NVML_STAND_IN_XIDS": str(xids),
        "CUDA_VISIBLE_DEVICES": "0,1,3",
        "SLURM_JOB_ID": "48812",
    }
    nap = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"]
    ranks = [
        subprocess.Popen(
            nap, env={**os.environ, "RANK": str(rank), "SLURM_JOB_ID": job}, stdin=subprocess.PIPE
        )
        for rank, job in ((0, "48812"), (1, "48812"), (2, "48812"), (7, "4"))
    ]
    uuids = [f"GPU-57a9d000-0000-4000-8000-{gpu:012}" for gpu in range(4)]
    pids.write_text(
        f"0 {ranks[0].pid}\n1 {ranks[1].pid}\n2 {ranks[2].pid}\n3 {ranks[1].pid}\n3 {os.getpid()}\n"
    )
    xids.write_text("1 79\n2 13\n3 31\n")
    more = [
        "--source",
        "nvml",
        "--metric",
        "NVDEC0_ACTIVE",
        "--metric",
        "DCGM_FI_DEV_MEM_CLOCK",
        "--metric",
        "SM_ACTIV",
    ]
    try:
        with running(folder, *more, env=environment) as process:
            assert until(lambda: read_ranks(folder))
            # Rank 2 is on a GPU that is not visible; two processes are no ranks of this job.
            assert until(lambda: read_gpu_processes(folder))
            held = {(each.pid, each.gpu_uuid, each.user) for each in read_gpu_processes(folder)}
            assert held == {(os.getpid(), uuids[3], "")}
            assert until(lambda: kinds(folder).count("xid") >= 2)
            assert until(lambda: read_samples(folder).rows > 6)
            process.terminate()
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert "no metric 'SM_ACTIV'" in process.stderr.read()
    finally:
        for each in ranks:
            each.communicate(b"\n", timeout=20)
    places = read_ranks(folder)
    # Rank 2 computes on a GPU that isn't this recorder's; rank 7 is another job's.
    assert gpu_uuids_by_rank(places) == {0: [uuids[0]], 1: [uuids[1], uuids[3]]}
    assert [(each.rank, each.gpu_uuid) for each in places if each.gpu_uuid is None] == [(2, None)]
    assert {each.pid for each in places} == {each.pid for each in ranks[:3]}
    found = {
        (event.device, event.message.partition(":")[0])
        for event in read_events(folder)
        if event.kind == "xid"
    }
    assert found == {(uuids[1], "The driver reports XID 79"), (uuids[3], "The driver reports XID 31")}
    table = read_samples(folder)
    assert [device.uuid for device in table.gpus] == [uuids[0], uuids[1], uuids[3]]
    columns = table[uuids[0]]
    assert np.nanmax(columns["MEM_CLOCK"]) == 1980
    assert np.isfinite(columns["NVDEC0_ACTIVE"]).any()
    # Nobody keeps them up to date any more.
    assert read_gpu_processes(folder) == ()


def test_a_process_on_a_gpu_has_its_program_its_notebook_or_its_user(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, command, environment in (
        (11, "python3", b"JPY_SESSION_NAME=/home/ada/train.ipynb\0"),
        (12, "evil\x1b[31m", b""),
    ):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "comm").write_text(command + "\n")
        (proc / str(pid) / "environ").write_bytes(environment)
    file = GpuProcessFile(tmp_path, "n1", "job", proc)
    file.update([(11, "GPU-0"), (12, "GPU-0"), (13, "GPU-1"), (14, "GPU-1")], {14})
    assert [(each.pid, each.gpu_uuid, each.name) for each in read_gpu_processes(tmp_path)] == [
        (11, "GPU-0", "the kernel of train.ipynb"),
        (12, "GPU-0", "evil [31m"),
        (13, "GPU-1", ""),
    ]
    file.update([], ())
    assert read_gpu_processes(tmp_path) == ()
    (tmp_path / "n2-job.gpus.json").write_text('[{"pid": "x"}]')
    assert read_gpu_processes(tmp_path) == ()
