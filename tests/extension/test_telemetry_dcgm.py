"""DCGM's daemon as a source: its program, together with the driver, restarts, and a missing daemon."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import nvml_stand_in
import pytest
from recorder_process import until

from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest
from gipfel_extension.telemetry.sources.dcgm import DcgmSource
from gipfel_extension.telemetry.store.segments import read_samples

_DATA = Path(__file__).parent / "data"
_A100 = "GPU-a5e25d3c-0f3d-4b1e-9a0b-5b1f0c2d7e0"


@pytest.fixture
def dcgmi(tmp_path: Path) -> Path:
    program = tmp_path / "dcgmi"
    program.write_text(f"#!{sys.executable}\n{(_DATA / 'dcgmi_of_two_gpus.py').read_text()}")
    program.chmod(0o755)
    return program


def test_dcgm_returns_the_jobs_gpus_in_metric_table_units(dcgmi: Path) -> None:
    request = SourceRequest(
        0.1,
        environment={"CUDA_VISIBLE_DEVICES": "1", "GIPFEL_NODE": "n1"},
        metrics=("PIPE_TENSOR_IMMA_ACTIVE",),
    )
    source = DcgmSource(request, program=str(dcgmi))
    try:
        assert [(each.uuid, each.index, each.node) for each in source.devices] == [(f"{_A100}2", 1, "n1")]
        assert source.devices[0].name == "NVIDIA A100-SXM4-80GB"
        assert until(lambda: source.read()[0].values["SM_ACTIVE"])
        (sample,) = source.read()
    finally:
        source.close()
    values = sample.values
    assert (values["GPU_UTIL"], values["SM_ACTIVE"], values["PIPE_TENSOR_IMMA_ACTIVE"]) == (
        0.97,
        0.874,
        0.001,
    )
    assert (values["FB_USED"], values["POWER_USAGE"]) == (40960 * 2**20, 312.442)
    assert values["TOTAL_ENERGY"] == pytest.approx(7_654_321.0)
    assert (values["PCIE_RX_BYTES"], values["NVLINK_TX_BYTES"]) == (4.321e9, 2.1e11)
    # A blank and what it doesn't have are missing, not huge and not 0.
    assert [values[name] for name in ("NVLINK_RX_BYTES", "PIPE_FP16_ACTIVE", "C2C_TX_ALL_BYTES")] == [
        None
    ] * 3


def test_exited_dcgmi_raises_and_is_restarted(dcgmi: Path, tmp_path: Path) -> None:
    source = DcgmSource(SourceRequest(0.1, environment={}), program=str(dcgmi))
    try:
        assert until(lambda: source.read()[0].values["SM_ACTIVE"])
        source._process.kill()
        source._process.wait(10)
        with pytest.raises(SourceError, match="dcgmi dmon ended"):
            source.read()
        assert until(lambda: source.read()[0].values["SM_ACTIVE"])
    finally:
        source.close()


def test_auto_reads_dcgm_too_where_no_gpu_has_gpm(dcgmi: Path, tmp_path: Path) -> None:
    library = nvml_stand_in.build(tmp_path)
    # The daemon's second GPU is the driver's second.
    text = dcgmi.read_text().replace(f"{_A100}2", "GPU-57a9d000-0000-4000-8000-000000000001")
    dcgmi.write_text(text)
    environment = nvml_stand_in.environment(library, gpus=2)
    environment |= {"NVML_STAND_IN_OLD": "1", "PATH": f"{dcgmi.parent}:{environment['PATH']}"}
    folder = tmp_path / "telemetry"
    command = [sys.executable, "-m", "gipfel_extension.recorder", "--telemetry", str(folder)]
    command += ["--node", "n1", "--interval", "0.1", "--flush", "0.2", "--source", "auto"]
    process = subprocess.Popen(command, env=environment)
    second = "GPU-57a9d000-0000-4000-8000-000000000001"
    try:
        assert until(lambda: _known(folder, second))
        # The daemon's end leaves what NVML has, and is told once.
        dcgmi.write_text("#!/bin/sh\nexit 3\n")
        (daemon,) = (
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/stat")
            if (words := _stat(path)) and words[1] == str(process.pid)
        )
        os.kill(daemon, signal.SIGKILL)
        assert until(lambda: [each.kind for each in read_events(folder)].count("source_lost"))
        rows = read_samples(folder).rows
        assert until(lambda: read_samples(folder).rows > rows + 10)
    finally:
        process.terminate()
        process.wait(30)
    table = read_samples(folder)
    assert table.source == "nvml+dcgm"
    first, other = (table[device.uuid] for device in table.gpus)
    # The driver's own numbers stay, and a GPU that the daemon doesn't know has no others.
    assert np.isfinite([*first["FB_USED"], *other["FB_USED"]]).all()
    assert np.isnan([*first["SM_ACTIVE"], other["SM_ACTIVE"][-1]]).all()
    assert [each.kind for each in read_events(folder)].count("source_lost") == 1


def _known(folder: Path, gpu: str) -> bool:
    columns = (read_samples(folder).columns or {}).get(gpu)
    return columns is not None and bool(np.isclose(columns["SM_ACTIVE"], 0.874, atol=1e-3).any())


def _stat(path: Path) -> list[str]:
    """State and parent of a process that may be gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def test_dcgm_without_a_daemon_raises_source_error(tmp_path: Path) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(
        "#!/bin/sh\necho 'Error: unable to establish a connection to the specified host' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(SourceError, match="unable to establish"):
        DcgmSource(SourceRequest(environment={}), program=str(program))
    with pytest.raises(SourceError, match="is not installed on this node"):
        DcgmSource(SourceRequest(environment={}), program="a-program-that-is-not-here")
