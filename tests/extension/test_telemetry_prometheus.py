"""A real Prometheus that scrapes a fake exporter: as a source, and as a history."""

import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gipfel_extension.telemetry.imports import open_recording
from gipfel_extension.telemetry.imports.prometheus import open_prometheus_range
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus")

_LIMIT_S = 60.0


class _Exporter(http.server.BaseHTTPRequestHandler):
    """Two nodes' exporters in one: SM_ACTIVE counts scrapes, and one GPU has no number."""

    scrapes = 0

    def do_GET(self) -> None:
        type(self).scrapes += 1
        lines = []
        for node in ("n1", "n10"):
            for gpu in range(2):
                where = (
                    f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",modelName="NVIDIA H100",Hostname="{node}.site.ch"'
                )
                lines.append(f"DCGM_FI_PROF_SM_ACTIVE{{{where}}} {self.scrapes / 10000 + gpu / 2}")
                lines.append(f"DCGM_FI_DEV_FB_USED{{{where}}} 1024")
                lines.append(f"DCGM_FI_DEV_POWER_USAGE{{{where}}} 9223372036854775794")
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = _free_port()
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {"job_name": "dcgm", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
                ],
            }
        )
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _LIMIT_S
        while _stored(url) < 3:
            assert time.monotonic() < deadline, (folder / "log").read_text()
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(20)
        server.shutdown()
        server.server_close()


def _stored(url: str) -> int:
    """Return how many scrapes it has stored."""
    query = "count_over_time(DCGM_FI_PROF_SM_ACTIVE%7Bgpu=%220%22,UUID=%22GPU-n1-0%22%7D%5B10m%5D)"
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?query={query}", timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
    except (OSError, ValueError, KeyError):
        return 0
    return int(found[0]["value"][1]) if found else 0


def test_the_jobs_gpus_of_this_node_each_scrape_once(prometheus: str) -> None:
    environment = {"GIPFEL_NODE": "n1", "CUDA_VISIBLE_DEVICES": "1"}
    source = open_source(f"prometheus:{prometheus}", SourceRequest(environment=environment))
    # Neither n10, whose name begins alike, nor the GPU that isn't the job's.
    assert [(each.uuid, each.name) for each in source.devices] == [("GPU-n1-1", "NVIDIA H100")]
    found = source.read()
    assert len(found) == 1
    deadline = time.monotonic() + _LIMIT_S
    while len(found) < 4 and time.monotonic() < deadline:
        found += source.read()
        time.sleep(0.2)
    times = [sample.time_ns for sample in found]
    assert times == sorted(set(times))
    levels = [sample.values["SM_ACTIVE"] for sample in found]
    # Every scrape is another number: none is missing, none comes twice.
    assert np.diff(levels) == pytest.approx(1 / 10000)
    assert {sample.values["FB_USED"] for sample in found} == {2**30}
    assert {sample.values["POWER_USAGE"] for sample in found} == {None}
    assert abs(found[-1].time_ns - time.time_ns()) < _LIMIT_S * 1e9
    source.close()


def test_a_time_range_as_a_recording(prometheus: str) -> None:
    now = time.time()
    question = f"{prometheus}?nodes=n1&start={now - 7300:.3f}&end={now:.3f}"
    recording = open_prometheus_range(question, {})
    table = recording.table
    assert [device.uuid for device in table.gpus] == ["GPU-n1-0", "GPU-n1-1"]
    assert table.interval == pytest.approx(1.0, abs=0.3)
    columns = table["GPU-n1-1"]
    assert len(columns["time_ns"]) >= 3
    assert np.diff(columns["SM_ACTIVE"]) == pytest.approx(1 / 10000)
    assert np.isnan(columns["POWER_USAGE"]).all()
    assert any("shared nodes" in note for note in recording.notes)
    # The same as a person asks for it, where everything else is a path.
    asked = open_recording(Path(f"prometheus:{question}"))
    assert asked.table.rows == table.rows
    some = open_prometheus_range(f"{question}&gpus=GPU-n1-1", {})
    assert [device.uuid for device in some.table.gpus] == ["GPU-n1-1"]


def test_prometheus_errors_and_missing_gpus_raise_source_error(prometheus: str) -> None:
    for question, words in (
        ("nodes=n1", "is not a valid time"),
        ("start=1&end=2", "names no nodes"),
        ("nodes=n1&start=2&end=1", "no time range"),
        ("nodes=n1&start=1&end=99999999", "no time range"),
        ("nodes=n1&start=2024-01-01T00:00:00Z&end=2024-01-01T00:10:00Z", "has no GPU of n1"),
        ('nodes=n1"}&start=1&end=2', "not a valid node name"),
        ("nodes=n.*&start=1&end=2", "not a valid node name"),
    ):
        with pytest.raises(SourceError, match=words) as caught:
            open_prometheus_range(f"{prometheus}?{question}", {})
        assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match="no GPU of this job on n3"):
        open_source(f"prometheus:{prometheus}", SourceRequest(environment={"GIPFEL_NODE": "n3"}))
    with pytest.raises(SourceError, match="name of this node is unknown"):
        open_source(f"prometheus:{prometheus}", SourceRequest(environment={}))
    with pytest.raises(SourceError, match="answers 404"):
        open_source(f"prometheus:{prometheus}/elsewhere", SourceRequest(environment={"GIPFEL_NODE": "n1"}))
