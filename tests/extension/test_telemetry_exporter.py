"""DCGM's exporter as a source: this job's GPUs on a node's page, and invalid pages."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source

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


def test_exporter_returns_only_the_jobs_gpus(exporter: tuple[str, type[_Scraped]]) -> None:
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


def test_exporter_of_another_node_or_none_raises_source_error(exporter: tuple[str, type[_Scraped]]) -> None:
    url, handler = exporter
    handler.text = "up 1\n"
    with pytest.raises(SourceError, match="no GPU of this job"):
        open_source(f"exporter:{url}", SourceRequest(environment={}))
    with pytest.raises(SourceError, match="doesn't answer"):
        open_source("exporter:http://127.0.0.1:9", SourceRequest(environment={}))
    for odd in ("", "ftp://x", "http://", "http://x:y", "http://a b", "file:///etc/passwd", "http://x\ny"):
        with pytest.raises(SourceError, match="not a valid HTTP address"):
            open_source(f"exporter:{odd}", SourceRequest(environment={}))
    with pytest.raises(SourceError, match="password") as caught:
        open_source("exporter:http://me:hunter2@127.0.0.1:1", SourceRequest(environment={}))
    assert "hunter2" not in str(caught.value)
