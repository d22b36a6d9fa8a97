"""Recordings of other tools: their units and names, and their missing data."""

import json
from pathlib import Path

import numpy as np
import pytest

from gipfel_extension.saturation import score_table
from gipfel_extension.telemetry.imports import Recording, open_recording
from gipfel_extension.telemetry.metric_table import GPU_METRICS
from gipfel_extension.telemetry.sample import Device, Sample, SampleTable, SourceError
from gipfel_extension.telemetry.sources.dcgm import BLANKS, number_or_nan
from gipfel_extension.telemetry.store.segments import Provenance, SegmentWriter, write_parquet

GPU = Device("GPU-8c1f", "gpu", "NVIDIA GH200 120GB", 0, node="nid001")

GSSR = {
    "metadata": {
        "job_id": 4711,
        "step_id": 0,
        "label": "x",
        "hostname": "nid001",
        "proc_id": 2,
        "n_gpus": 1,
        "gpu_ids": [2],
        "start_time": 1_700_000_000.0,
        "end_time": 1_700_000_002.0,
        "elapsed": 2.0,
        "sampling_time": 500,
        "n_samples": 4,
        "cmd": "python train.py",
    },
    "data": {
        "2": {
            "gpu_utilization": [100, 100, 100, 50],
            "sm_active": [0.9, 0.9, 0.9, None],
            "sm_occupancy": [0.3, 0.3, 0.3, 0.3],
            "dram_active": [0.45, 0.45, 0.45, 0.45],
            "tensor_active": [0.7, 0.7, 0.7, 0.7],
            "fp64_active": [0, 0, 0, 0],
            "fp32_active": [0, 0, 0, 0],
            "fp16_active": [0, 0, 0, 0],
            "pcie_tx_bytes": [1e9, 1e9, 3e9, 9223372036854775794],
        }
    },
}


def gssr(folder: Path, content: object, name: str = "x_job_4711_step_0_proc_2.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def column(found: Recording, metric: str, place: int = 0) -> list[float | None]:
    values = found.table[found.table.devices[place].uuid][metric]
    return [None if np.isnan(value) else float(value) for value in values]


def test_gssr_json(tmp_path):
    found = open_recording(gssr(tmp_path, GSSR))
    assert found.table.devices == (Device("nid001:2", "gpu", "", 2, node="nid001"),)
    assert found.ranks == {2: ["nid001:2"]}
    assert found.label == "job 4711 step 0"
    # A percentage beside fractions.
    assert column(found, "GPU_UTIL") == [1.0, 1.0, 1.0, 0.5]
    assert column(found, "SM_ACTIVE") == [0.9, 0.9, 0.9, None]
    assert column(found, "PIPE_TENSOR_ACTIVE") == [0.7] * 4
    assert column(found, "PCIE_TX_BYTES") == [1e9, 1e9, 3e9, None]
    assert column(found, "NVLINK_TX_BYTES") == [None] * 4
    times = found.table["nid001:2"]["time_ns"]
    assert (times[-1], np.diff(times).tolist()) == (1_700_000_002 * 10**9, [500_000_000] * 3)
    assert found.table.interval == 0.5
    job = score_table(found.table, ranks=found.ranks)
    assert job.total.score == pytest.approx(70.0)
    assert job.ranks[0].total.score == pytest.approx(70.0)


def test_gssr_json_notes_missing_gpus(tmp_path):
    many = {**GSSR, "metadata": {**GSSR["metadata"], "n_gpus": 4}}
    assert open_recording(gssr(tmp_path, many)).notes[0].startswith("gssr wrote 1 of the 4 GPUs")
    assert not any("of the" in note for note in open_recording(gssr(tmp_path, GSSR)).notes[:1])


def test_gssr_json_of_all_processes_is_one_job(tmp_path):
    folder = tmp_path / "profile_out_JobID_4711"
    folder.mkdir()
    for rank in range(4):
        about = {**GSSR["metadata"], "proc_id": rank, "hostname": f"nid00{rank // 2}"}
        gssr(folder, {"metadata": about, "data": {str(rank): GSSR["data"]["2"]}}, f"x_proc_{rank}.json")
    (folder / "x_proc_9.json").write_text("{ torn")
    found = open_recording(folder)
    assert len(found.table.gpus) == 4
    assert sorted(found.ranks) == [0, 1, 2, 3]
    assert any("x_proc_9.json is left out" in note for note in found.notes)
    assert len([rank for rank in score_table(found.table, ranks=found.ranks).ranks if rank.total]) == 4


def test_gpu_recorded_by_two_processes_is_imported_once(tmp_path):
    for rank in range(2):
        about = {**GSSR["metadata"], "proc_id": rank}
        gssr(tmp_path, {**GSSR, "metadata": about}, f"x_proc_{rank}.json")
    found = open_recording(tmp_path)
    assert [device.uuid for device in found.table.devices] == ["nid001:2"]
    assert found.ranks == {0: ["nid001:2"], 1: ["nid001:2"]}


FIELDS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_RESERVED",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE",
    "DCGM_FI_PROF_PIPE_INT_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_POWER_USAGE",
)
MEANS = (100, 1000, 3000, 96, 0.9, 0.0, 0.6, 0.0, 0.1, 0.45, 1_500_000_000, 70000, 612.5)


def gssr_record(folder: Path, *, gpus: int = 2, seconds: int = 3, nvlink: int | None = None) -> Path:
    step = folder / "alps_4711" / "step_0"
    step.mkdir(parents=True)
    titles = ",".join(f"{field}_{part}" for field in FIELDS for part in ("min", "avg", "max"))
    means = [
        nvlink if "NVLINK" in f and nvlink is not None else m for f, m in zip(FIELDS, MEANS, strict=True)
    ]
    values = ",".join(f"0,{mean},{mean}" for mean in means)
    lines = [f"{second},{gpu},{values}" for second in range(seconds) for gpu in range(gpus)]
    path = step / "proc_0.csv"
    path.write_text("\n".join([f"timestamp,gpuId,{titles}", *lines]) + "\n3,0,100,1")
    # Arguments with line breaks, as it writes them: no valid JSON.
    meta = '{\n "gssr-record-version": "2.0",\n "date": "2026-03-27T12:38:47+0100",\n "jobid": "4711",\n'
    (step / "proc_0.meta.txt").write_text(meta + " \"arguments\": \"'-lc' '\n set -e\n'\"\n}\n")
    return path


def test_gssr_record_csv(tmp_path):
    path = gssr_record(tmp_path)
    for found in (open_recording(path), open_recording(tmp_path / "alps_4711")):
        assert [device.uuid for device in found.table.devices] == ["step_0/proc_0:0", "step_0/proc_0:1"]
        assert column(found, "GPU_UTIL", 1) == [1.0] * 3
        assert column(found, "PIPE_TENSOR_ACTIVE") == [0.6] * 3
        assert column(found, "PIPE_INT_ACTIVE") == [0.1] * 3
        assert column(found, "NVLINK_TX_BYTES") == [1.5e9] * 3
        assert column(found, "FB_USED") == [3000 * 2.0**20] * 3
        assert column(found, "FB_TOTAL") == [4096 * 2.0**20] * 3
        assert column(found, "POWER_USAGE") == [612.5] * 3
        times = found.table["step_0/proc_0:0"]["time_ns"]
        assert times.tolist() == [(1774611527 + second) * 10**9 for second in range(3)]
        assert any("1 truncated lines" in note for note in found.notes)
        assert score_table(found.table).total.score == pytest.approx(60.0)
    assert open_recording(path).label == "job 4711"


def test_gssr_records_zero_of_a_link_may_be_more_than_2_gb_and_is_missing(tmp_path):
    found = open_recording(gssr_record(tmp_path, nvlink=0))
    assert column(found, "NVLINK_TX_BYTES") == [None] * 3
    assert found.notes[0].startswith("gssr-record writes 0 for rates above 2 GB/s")


def test_gssr_record_without_a_date_says_so(tmp_path):
    path = gssr_record(tmp_path)
    (path.parent / "proc_0.meta.txt").unlink()
    assert any("no proc_0.meta.txt" in note for note in open_recording(path).notes)


LABELS = (
    'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="0000{gpu}",device="nvidia{gpu}",'
    'modelName="NVIDIA H100 80GB HBM3",Hostname="nid001",hpc_job="4711"'
)
VALUES = {
    "DCGM_FI_DEV_GPU_UTIL": "99",
    "DCGM_FI_DEV_FB_USED": "2048",
    "DCGM_FI_DEV_MEMORY_TEMP": "9223372036854775794",
    "DCGM_FI_DEV_POWER_USAGE": "9.223372036854776e+18",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.990000",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.550000",
    "DCGM_FI_PROF_DRAM_ACTIVE": "0.270000",
    "DCGM_FI_PROF_PCIE_TX_BYTES": "5568000000",
}


def exporter(scrapes: int, *, stamped: bool = False) -> str:
    lines = []
    for scrape in range(scrapes):
        for metric, value in VALUES.items():
            lines += [f"# HELP {metric} words {{}} of it.", f"# TYPE {metric} gauge"]
            for gpu in range(2):
                stamp = f" {1_700_000_000_000 + 15_000 * scrape}" if stamped else ""
                lines.append(f"{metric}{{{LABELS.format(gpu=gpu)}}} {value}{stamp}")
    return "\n".join(lines) + "\n"


def test_exporter_text(tmp_path):
    path = tmp_path / "scrapes.prom"
    path.write_text(exporter(3))
    found = open_recording(path)
    assert found.table.devices[1] == Device("GPU-1", "gpu", "NVIDIA H100 80GB HBM3", 1, node="nid001")
    assert column(found, "GPU_UTIL") == [0.99] * 3
    assert column(found, "FB_USED") == [2048 * 2.0**20] * 3
    assert column(found, "POWER_USAGE") == [None] * 3
    assert any("no times" in note for note in found.notes)
    job = score_table(found.table)
    assert job.total.score == pytest.approx(55.0)
    # It has no SM activity by default, so nothing tells what the gap is.
    assert job.total.losses["unexplained"] == pytest.approx(45.0)
    assert any("SM_ACTIVE is missing" in note for note in job.notes)


def test_exporter_text_with_times(tmp_path):
    path = tmp_path / "scrapes.txt"
    path.write_text(exporter(3, stamped=True))
    found = open_recording(path)
    assert np.diff(found.table["GPU-0"]["time_ns"]).tolist() == [15 * 10**9] * 2
    assert score_table(found.table).interval == 15.0
    assert not any("no times" in note for note in found.notes)


def test_single_scrape_has_a_note(tmp_path):
    path = tmp_path / "one.prom"
    path.write_text(exporter(1))
    assert any("single scrape" in note for note in open_recording(path).notes)


def test_mig_instances_are_separate_devices(tmp_path):
    path = tmp_path / "mig.prom"
    path.write_text(
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-x",GPU_I_PROFILE="1g.24gb",GPU_I_ID="5"} 0.17\n'
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-x",GPU_I_PROFILE="1g.24gb",GPU_I_ID="6"} 0.0\n'
    )
    assert [device.uuid for device in open_recording(path).table.devices] == ["GPU-x/5", "GPU-x/6"]


@pytest.mark.parametrize("text", [*(repr(blank) for blank in BLANKS), "NaN", "+Inf", "N/A", None, ""])
def test_blanks_are_missing(text):
    assert np.isnan(number_or_nan(text))


@pytest.mark.parametrize("value", ["2000000001", "450000000000", "1.5e14", "0"])
def test_large_numbers_are_not(value):
    assert number_or_nan(value) == float(value)


def sample(second: int) -> Sample:
    values = {"SM_ACTIVE": 0.9, "PIPE_TENSOR_ACTIVE": 0.5, "GR_ENGINE_ACTIVE": 1.0}
    return Sample(second * 10**9, second * 10**9, GPU.uuid, dict.fromkeys(GPU_METRICS) | values)


def test_gipfel_files(tmp_path):
    telemetry = tmp_path / "alps-4711" / "telemetry"
    telemetry.mkdir(parents=True)
    origin = Provenance("nid001", "job", "nvml+gpm", simulated=False, interval=1.0, devices=(GPU,))
    writer = SegmentWriter(telemetry, origin, start_ns=10**18)
    writer.write([sample(1), sample(2)])
    segment = writer.close()
    write_parquet(
        SampleTable.from_samples([sample(1), sample(2)], [GPU], interval=1.0), tmp_path / "t.parquet"
    )
    for path in (telemetry.parent, telemetry, segment, tmp_path / "t.parquet"):
        found = open_recording(path)
        assert found.table.rows == 2
        assert found.table.devices == (GPU,)
    assert open_recording(telemetry.parent).label == "alps-4711"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", b"{"),
        ("x.json", b'{"metadata": 1, "data": 2}'),
        ("x.json", b'{"metadata": {}, "data": {"0": 5}}'),
        ("x.json", b'{"metadata": {}, "data": {"0": {"sm_active": 5}}}'),
        ("x.json", b'{"metadata": {"start_time": 1e300}, "data": {"0": {"sm_active": [1]}}}'),
        ("x.json", b'{"metadata": ' + b"[" * 100_000),
        ("x.csv", b"timestamp,gpuId," + b"a" * 200_000),
        ("x.csv", b"timestamp,gpuId\n"),
        ("x.csv", b"a,b\n1,2\n"),
        ("x.parquet", b"PAR1 and no more"),
        ("x.arrows", b""),
        ("x.arrows", b"\xff\xff\xff\xff torn"),
        ("x.prom", b"# HELP nothing\nup 1\n"),
        ("x.bin", bytes(range(256))),
    ],
)
def test_invalid_recording_raises_source_error(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SourceError) as refused:
        open_recording(path)
    assert str(path) in refused.value.problem
    assert refused.value.fix


def test_an_empty_folder_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(SourceError, match="can't be read"):
            open_recording(path)


def test_simulated_gpus_beside_real_ones_are_left_out(tmp_path):
    pretended = Device("GPU-simulated", "gpu", "simulated GPU", 0, node="nid001", simulated=True)
    for name, device in (("job", GPU), ("simulated", pretended)):
        origin = Provenance("nid001", name, name, simulated=device.simulated, interval=1.0, devices=(device,))
        writer = SegmentWriter(tmp_path, origin, start_ns=10**18)
        writer.write([Sample(10**9, 10**9, device.uuid, dict(sample(1).values))])
        writer.close()
    found = open_recording(tmp_path)
    assert found.table.devices == (GPU,)
    assert found.notes == ("Simulated GPUs are left out.",)
