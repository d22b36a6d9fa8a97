"""Hostile servers and files: each costs one line in the log, and never the recording."""

import contextlib
import gzip
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_cluster.runs import RunFolder
from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.files import read_record_file
from gipfel_extension.telemetry.imports import open_recording
from gipfel_extension.telemetry.imports.prometheus import open_prometheus_range
from gipfel_extension.telemetry.ranks import read_ranks
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.telemetry.sources import SourceRequest, open_source
from gipfel_extension.telemetry.sources.web import get
from gipfel_extension.telemetry.user_metrics import read_metrics

_GPU = 'gpu="0",UUID="GPU-a",Hostname="n1"'


def _ok(body: bytes, *headers: str) -> bytes:
    head = ["HTTP/1.0 200 OK", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.fixture
def answering() -> Iterator[Callable[[bytes, bytes], str]]:
    """A server that sends a given response, then single bytes until it is closed."""
    listening = socket.create_server(("127.0.0.1", 0))
    said = [b"", b""]
    ended = threading.Event()

    def speak(talk: socket.socket) -> None:
        with talk, contextlib.suppress(OSError):
            talk.recv(65536)
            talk.sendall(said[0])
            while said[1] and not ended.wait(0.05):
                talk.sendall(said[1])

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                talk, _ = listening.accept()
                threading.Thread(target=speak, args=(talk,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def answer(first: bytes, then: bytes = b"") -> str:
        said[:] = [first, then]
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield answer
    ended.set()
    # Wakes the thread that accepts.
    with contextlib.suppress(OSError):
        socket.create_connection(listening.getsockname(), 1).close()
    thread.join(10)
    listening.close()


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x", "takes too long"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x", "takes too long"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x", "takes too long"),
        (b"HTTP/1.0 200 OK\r\nX: ", b"x", "takes too long"),
        (b"", b"x", "takes too long"),
        (b"220 smtp.site.ch\r\n", b"", "doesn't answer"),
        (b"", b"", "doesn't answer"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\nshort", b"", "closed early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"", "doesn't answer"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: x\r\n\r\n" + b"y" * (1 << 20), b"", "more than 0 MiB"),
        (b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", b"", "answers 302"),
        (b"HTTP/1.0 302 Found\r\nLocation: ftp://127.0.0.1/x\r\n\r\n", b"", "redirects to"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://localhost/\r\n\r\n", b"", "redirects to"),
        (b"HTTP/1.0 302 Found\r\nLocation: /\r\n\r\n", b"", "answers 302"),
        (b"HTTP/1.0 500 Oops\r\n\r\n" + b"[" * 30_000, b"", "answers 500"),
    ],
)
def test_slow_invalid_or_redirecting_servers_raise_source_error_in_time(
    answering: Callable[[bytes, bytes], str], first: bytes, then: bytes, words: str
) -> None:
    url = answering(first, then)
    with pytest.raises(SourceError, match=words):
        get(url, seconds=1.0 if then else 30.0, max_bytes=1 << 19, environment={})


def test_invalid_exporter_values_times_and_labels_are_missing(
    answering: Callable[[bytes], str],
) -> None:
    odd = [
        f"DCGM_FI_PROF_SM_ACTIVE{{{_GPU}}} 0.5 {'9' * 5000}",
        f"DCGM_FI_PROF_DRAM_ACTIVE{{{_GPU}}} NaN",
        f"DCGM_FI_DEV_POWER_USAGE{{{_GPU}}} +Inf",
        f"DCGM_FI_DEV_FB_USED{{{_GPU}}} 1e308",
        f"DCGM_FI_DEV_GPU_TEMP{{{_GPU}}} 1e400",
        f"DCGM_FI_DEV_GPU_UTIL{{{_GPU}}} 0x10",
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{"1" * 5000}",UUID="GPU-b",Hostname="n1"}} 1 9999999999999',
        # Tried again from each of its letters, this would take hours.
        f"DCGM_FI_DEV_GPU_UTIL{{{'a' * 400_000}}} 1",
        "\0\x1b[31m",
    ]
    url = answering(_ok("\n".join(odd).encode()))
    request = SourceRequest(environment={"GIPFEL_NODE": "n1"})
    with contextlib.closing(open_source(f"exporter:{url}", request)) as source:
        first, second = source.read()
    assert [(d.uuid, d.index) for d in source.devices] == [("GPU-a", 0), ("GPU-b", None)]
    assert {name: value for name, value in first.values.items() if value is not None} == {"SM_ACTIVE": 0.5}
    assert second.values["GPU_UTIL"] == 0.01
    # A compressed body that was not requested is not text, and isn't decompressed.
    answering(_ok(gzip.compress(b"x" * (64 << 20)), "Content-Encoding: gzip"))
    with pytest.raises(SourceError, match="no GPU of this job"):
        open_source(f"exporter:{url}", request)


@pytest.mark.parametrize(
    "result",
    [
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "values": [[1e400, "1"]]}],
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "values": [[math.nan, "1"]]}],
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "values": [[1e300, "1"]]}],
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "values": [[10**400, "1"]]}],
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "values": [[-5, "1"]]}],
        [{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "values": [["x", "1"]]}],
        [{"metric": "x", "values": []}],
        [{"metric": {}, "values": 3}],
        "x",
        None,
        {"a": 1},
    ],
)
def test_invalid_prometheus_response_raises_source_error(
    answering: Callable[[bytes], str], result: object
) -> None:
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    url = answering(_ok(json.dumps(answer).encode()))
    with pytest.raises(SourceError, match="does not answer as Prometheus"):
        open_prometheus_range(f"{url}?nodes=n1&start=0&end=60", {})
    for nonsense in (b"[" * 100_000, b"9" * 5000, b"\xff\xfe", b'{"status": "success"}', b"[1]", b""):
        answering(_ok(nonsense))
        with pytest.raises(SourceError, match=r"does not answer (with JSON|as Prometheus)"):
            open_prometheus_range(f"{url}?nodes=n1&start=0&end=60", {})


def test_pipes_in_a_run_folder_do_not_block_readers(tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry"
    telemetry.mkdir()
    names = ("record.json", "metrics.jsonl", "telemetry/a.events.jsonl", "telemetry/a.ranks.json")
    for name in (*names, "telemetry/n-1-0.arrows", "pipe"):
        os.mkfifo(tmp_path / name)
    assert read_record_file(tmp_path) == {}
    assert read_events(telemetry) == ()
    assert read_ranks(telemetry) == ()
    with pytest.raises(OSError, match="not a regular file"):
        read_metrics(tmp_path)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(SourceError, match="can't be read"):
            open_recording(path)
    with pytest.raises(GipfelError, match="can't be read"):
        RunFolder(tmp_path).read_record()
