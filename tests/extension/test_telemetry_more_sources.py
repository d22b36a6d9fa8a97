"""Sources beyond this node's driver: DCGM, its exporter, AMD SMI, and which GPUs are a job's."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source, source_names
from gipfel_extension.telemetry.sources.amdsmi_source import AmdSource
from gipfel_extension.telemetry.sources.dcgm import DcgmSource
from gipfel_extension.telemetry.sources.lustre import lustre_counters, parse_stats
from gipfel_extension.telemetry.sources.network import network_counters
from gipfel_extension.telemetry.sources.own_gpus import ShownGpu, own_gpus
from gipfel_extension.telemetry.store.segments import read_samples

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import nvml_stand_in

_DATA = Path(__file__).parent / "data"
_A100 = "GPU-a5e25d3c-0f3d-4b1e-9a0b-5b1f0c2d7e0"


def until(done: Any, seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.fixture
def dcgmi(tmp_path: Path) -> Path:
    program = tmp_path / "dcgmi"
    program.write_text(f"#!{sys.executable}\n{(_DATA / 'dcgmi_of_two_gpus.py').read_text()}")
    program.chmod(0o755)
    return program


def test_dcgm_gives_the_jobs_gpus_in_our_units(dcgmi: Path) -> None:
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
    assert (values["PCIE_RX_BYTES"], values["NVLINK_TX_BYTES"]) == (4.321e9, 2.1e11)
    # A blank and what it doesn't have are missing, not huge and not 0.
    assert [values[name] for name in ("NVLINK_RX_BYTES", "PIPE_FP16_ACTIVE", "C2C_TX_ALL_BYTES")] == [
        None
    ] * 3


def test_dcgm_that_ends_is_an_error_and_is_started_again(dcgmi: Path, tmp_path: Path) -> None:
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


def test_auto_asks_dcgm_too_where_no_gpu_has_gpm(dcgmi: Path, tmp_path: Path) -> None:
    library = nvml_stand_in.build(tmp_path)
    # The daemon's second GPU is the driver's second.
    text = dcgmi.read_text().replace(f"{_A100}2", "GPU-57a9d000-0000-4000-8000-000000000001")
    dcgmi.write_text(text)
    environment = nvml_stand_in.environment(library, gpus=2)
    environment |= {"NVML_STAND_IN_OLD": "1", "PATH": f"{dcgmi.parent}:{environment['PATH']}"}
    folder = tmp_path / "telemetry"
    command = [sys.executable, "-m", "gipfel_extension.telemetry.recorder", "--telemetry", str(folder)]
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
    first, other = (table.of(device.uuid) for device in table.gpus)
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


def test_dcgm_without_a_daemon_says_so(tmp_path: Path) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(
        "#!/bin/sh\necho 'Error: unable to establish a connection to the specified host' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    with pytest.raises(SourceError, match="unable to establish"):
        DcgmSource(SourceRequest(environment={}), program=str(program))
    with pytest.raises(SourceError, match="is not on this node"):
        DcgmSource(SourceRequest(environment={}), program="a-program-that-is-not-here")


_SCRAPE = """\
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-aaaa",device="nvidia0",modelName="NVIDIA H100",Hostname="n1"} 0.5
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-bbbb",device="nvidia1",modelName="NVIDIA H100",Hostname="n1"} 0.25
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-bbbb",device="nvidia1",modelName="NVIDIA H100",Hostname="n1"} 1024
DCGM_FI_DEV_MEMORY_TEMP{gpu="1",UUID="GPU-bbbb",modelName="NVIDIA H100",Hostname="n1"} 9223372036854775794
DCGM_FI_DEV_MEM_CLOCK{gpu="1",UUID="GPU-bbbb",modelName="NVIDIA H100",Hostname="n1"} 2619
"""


class _Scraped(http.server.BaseHTTPRequestHandler):
    text = _SCRAPE
    status = 200

    def do_GET(self) -> None:
        body = self.text.encode()
        self.send_response(self.status if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[tuple[str, type[_Scraped]]]:
    handler = type("Scraped", (_Scraped,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    server.server_close()


def test_an_exporter_shows_the_jobs_gpus_alone(exporter: tuple[str, type[_Scraped]]) -> None:
    url, handler = exporter
    environment = {"CUDA_VISIBLE_DEVICES": "1", "GIPFEL_NODE": "n1"}
    source = open_source(f"exporter:{url}", SourceRequest(environment=environment, metrics=("MEM_CLOCK",)))
    (sample,) = source.read()
    assert [(each.uuid, each.name, each.node) for each in source.devices] == [
        ("GPU-bbbb", "NVIDIA H100", "n1")
    ]
    assert (sample.device, sample.values["SM_ACTIVE"], sample.values["FB_USED"]) == ("GPU-bbbb", 0.25, 2**30)
    assert (sample.values["MEM_CLOCK"], sample.values["DRAM_ACTIVE"]) == (2619.0, None)
    assert "MEMORY_TEMP" not in sample.values
    handler.status = 500
    with pytest.raises(SourceError, match="answers 500"):
        source.read()
    source.close()


def test_an_exporter_of_another_node_or_none_is_one_line(exporter: tuple[str, type[_Scraped]]) -> None:
    url, handler = exporter
    handler.text = "up 1\n"
    with pytest.raises(SourceError, match="no GPU of this job"):
        open_source(f"exporter:{url}", SourceRequest(environment={}))
    with pytest.raises(SourceError, match="doesn't answer"):
        open_source("exporter:http://127.0.0.1:9", SourceRequest(environment={}))
    for odd in ("", "ftp://x", "http://", "http://x:y", "http://a b", "file:///etc/passwd", "http://x\ny"):
        with pytest.raises(SourceError, match="no address of HTTP"):
            open_source(f"exporter:{odd}", SourceRequest(environment={}))
    with pytest.raises(SourceError, match="password") as caught:
        open_source("exporter:http://me:hunter2@127.0.0.1:1", SourceRequest(environment={}))
    assert "hunter2" not in str(caught.value)


class FakeAmd:
    """AMD SMI 7 as its Python module gives it, on two GPUs; N/A where a GPU doesn't have something."""

    class AmdSmiException(Exception):  # noqa: N818 - its name
        pass

    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self) -> None:
        self.open = 0
        self.read_kib = 1000
        self.broken = False

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["gpu0", "gpu1"]

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return f"{handle}-uuid"

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, object]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, object]:
        if self.broken:
            raise self.AmdSmiException("AMDSMI_STATUS_NO_PERM")
        return {"gfx_activity": 93, "umc_activity": 41, "mm_activity": "N/A"}

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, object]:
        return {"vram_total": 196592, "vram_used": 1024}

    def amdsmi_get_power_info(self, handle: str) -> dict[str, object]:
        return {"current_socket_power": "N/A", "average_socket_power": 640}

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, object]:
        return {"clk": 2100}

    def amdsmi_get_temp_metric(self, handle: str, kind: str, metric: str) -> int:
        return 58

    def amdsmi_get_violation_status(self, handle: str) -> dict[str, object]:
        return {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"}

    def amdsmi_get_gpu_metrics_info(self, handle: str) -> dict[str, object]:
        return {"xgmi_read_data_acc": [self.read_kib, "N/A"], "xgmi_write_data_acc": "N/A"}

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, object]]:
        return [{"pid": 4711, "name": "python"}] if handle == "gpu1" else []


class SetClock:
    now_ns = 10**9

    def time_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, seconds: float, ended: threading.Event) -> bool:
        return ended.is_set()


def test_amd_smi_under_dcgms_names() -> None:
    library, clock = FakeAmd(), SetClock()
    environment = {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0", "GIPFEL_NODE": "n1"}
    source = AmdSource(SourceRequest(environment=environment, clock=clock), library=library)
    assert [(each.uuid, each.name, each.index) for each in source.devices] == [
        ("GPU-gpu1-uuid", "AMD Instinct MI300X", 1)
    ]
    assert source.processes() == [(4711, "GPU-gpu1-uuid")]
    source.read()
    library.read_kib += 2000
    clock.now_ns += 2 * 10**9
    values = source.read()[0].values
    assert (values["GPU_UTIL"], values["MEM_COPY_UTIL"]) == pytest.approx((0.93, 0.41))
    assert values["SM_ACTIVE"] is None
    assert (values["FB_USED"], values["FB_TOTAL"]) == (2**30, 196592 * 2**20)
    assert (values["POWER_USAGE"], values["GPU_TEMP"], values["SM_CLOCK"]) == (640, 58, 2100)
    assert (values["NVLINK_RX_BYTES"], values["NVLINK_TX_BYTES"]) == (1000 * 1024, None)
    assert values["CLOCKS_EVENT_REASONS"] == 4
    library.broken = True
    assert source.read()[0].values["GPU_UTIL"] is None
    source.close()
    assert library.open == 0


def test_amd_smi_without_rocm_or_without_a_gpu_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The module raises while it is imported where ROCm's library is missing.
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SourceError, match="can't be imported"):
        open_source("amdsmi", SourceRequest(environment={}))
    library = FakeAmd()
    with pytest.raises(SourceError, match="no GPU"):
        AmdSource(SourceRequest(environment={"HIP_VISIBLE_DEVICES": ""}), library=library)
    assert library.open == 0


_FOUR = [ShownGpu(f"GPU-{number}", number) for number in range(4)]


@pytest.mark.parametrize(
    ("environment", "own"),
    [
        ({}, "0123"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "20"),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_STEP_GPUS": "0,1"}, ""),
        ({"SLURM_STEP_GPUS": "1,3", "SLURM_JOB_GPUS": "0-3"}, "13"),
        ({"SLURM_JOB_GPUS": "1-2"}, "12"),
        ({"SLURM_JOB_GPUS": "7"}, ""),
        ({"SLURM_JOB_GPUS": "nonsense"}, "0123"),
    ],
)
def test_the_jobs_gpus_by_variables(environment: dict[str, str], own: str) -> None:
    assert own_gpus(_FOUR, environment) == tuple(f"GPU-{number}" for number in own)


def test_what_the_control_group_keeps_from_us_is_not_ours() -> None:
    opens = {0: False, 1: True, 2: False, 3: True}.__getitem__
    assert own_gpus(_FOUR, {}, opens=opens) == ("GPU-1", "GPU-3")
    # Inside a constrained job CUDA counts what is left.
    assert own_gpus(_FOUR, {"CUDA_VISIBLE_DEVICES": "1"}, opens=opens) == ("GPU-3",)
    # Renumbered devices: Slurm's numbers are the node's, and the group has said enough.
    renumbered = [ShownGpu("GPU-a", 0), ShownGpu("GPU-b", 1)]
    assert own_gpus(renumbered, {"SLURM_JOB_GPUS": "6,7"}) == ("GPU-a", "GPU-b")


def test_synthetic_gpus_in_any_number() -> None:
    assert len(open_source("synthetic:training:16").devices) == 16
    for odd in ("0", "-1", "x", "", "1025", "٣"):
        with pytest.raises(SourceError, match="no number"):
            open_source(f"synthetic:idle:{odd}")


def test_every_source_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert sorted(project["entry-points"]["gipfel.sources"]) == sorted(source_names()[:9])
    for name in ("nvml", "dcgm", "amdsmi", "host", "auto"):
        with pytest.raises(SourceError, match="takes nothing"):
            open_source(f"{name}:what")


def test_a_source_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.py").write_text(
        "from gipfel_extension.telemetry.sources import AbsentSource\n"
        "def opened(argument, request): return AbsentSource(f'{argument} every {request.interval:g} s')\n"
    )
    about = tmp_path / "other-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[gipfel.sources]\nother = other:opened\nbroken = other:missing\nnvml = other:opened\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert open_source("other:x:y", SourceRequest(2.0)).name == "x:y every 2 s"
    # Ours are ours, whatever somebody installs.
    assert source_names().count("nvml") == 1
    with pytest.raises(SourceError, match="can't be imported"):
        open_source("broken")


def test_lustre_counters_of_a_client(tmp_path: Path) -> None:
    text = (_DATA / "lustre_stats.txt").read_text()
    assert parse_stats(text.splitlines()) == {
        "LUSTRE_READ_BYTES": 13419520000.0,
        "LUSTRE_WRITE_BYTES": 41943650.0,
        "LUSTRE_METADATA_OPS": 1525.0 + 1520 + 20114 + 3 + 99,
    }
    assert set(lustre_counters(tmp_path).values()) == {None}
    for name in ("scratch-ff0", "capstor-ff1"):
        folder = tmp_path / "sys/kernel/debug/lustre/llite" / name
        folder.mkdir(parents=True)
        (folder / "stats").write_text(text)
    assert lustre_counters(tmp_path)["LUSTRE_WRITE_BYTES"] == 2 * 41943650.0
    # Half a line, words, and a file that is none of it.
    odd = ["read_bytes 1 samples", "open x samples [usec]", "write_bytes 1 samples [bytes] 0 1 nine", "", "x"]
    assert set(parse_stats(odd).values()) == {0.0}


def test_infiniband_is_counted_by_its_ports(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(
        "Inter-| Receive | Transmit\n face |bytes |bytes\n"
        "   ib0: 500 0 0 0 0 0 0 0 700 0 0 0 0 0 0 0\n  eth0: 10 0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n"
    )
    assert network_counters(tmp_path / "proc", tmp_path / "sys")["NET_RX_BYTES"] == 510
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "counters/port_rcv_data").write_text("1000\n")
    (port / "counters/port_xmit_data").write_text("2000\n")
    counted = network_counters(tmp_path / "proc", tmp_path / "sys")
    assert (counted["NET_RX_BYTES"], counted["NET_TX_BYTES"]) == (4010, 8020)
