"""The cluster around a job: from Slurm's commands, from a Prometheus, and as a run folder keeps it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gipfel_extension.job.metric_figures import cluster_figure
from gipfel_extension.server.job_tabs import ClusterAround
from gipfel_extension.telemetry.sample import SourceError
from gipfel_extension.topology.cluster import (
    CLUSTER_FILE,
    ClusterRecorder,
    ClusterState,
    NodeCounts,
    OwnJob,
    SlurmAnswers,
    append_state,
    cluster_state,
    read_prometheus,
    read_states,
)
from gipfel_extension.topology.read import parse_fabric

_FABRIC = parse_fabric(
    "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-3]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[4-7]\n"
    "SwitchName=root Level=1 LinkSpeed=1 Nodes=n[0-7] Switches=s[0-1]\n"
)
_SINFO = """\
n0|normal*|mixed
n0|debug|mixed
n1|normal*|allocated
n2|normal*|allocated
n3|normal*|idle
n4|normal*|idle~
n5|normal*|down*
n6|normal*|drained
n7|normal*|allocated
not a line
"""
_SQUEUE = """\
11|normal|RUNNING|2|n[0-1]
12|normal|RUNNING|1|n2
13|debug|RUNNING|1|n7
14|normal|PENDING|64|
15|normal|PENDING|1|
x|normal|RUNNING|1|n3
"""


def _state(squeue: str = _SQUEUE, **own: object) -> ClusterState:
    answers = SlurmAnswers(sinfo=_SINFO, squeue=squeue, time_ns=5)
    return cluster_state(answers, OwnJob.model_validate(own), _FABRIC)


def test_nodes_queue_and_neighbours_of_a_job() -> None:
    found = _state(job_id="11", nodes=("n0", "n1"))
    assert found.nodes == NodeCounts(allocated=4, idle=2, down=2)
    assert (found.partition, found.running, found.pending) == ("normal", 2, 2)
    assert found.partition_nodes == found.nodes
    (switch,) = found.switches
    assert (switch.name, switch.own, switch.others, switch.idle, switch.jobs) == ("s0", 2, 1, 1, 1)
    assert not found.problems
    # Without its ID, the nodes tell the partition.
    assert _state(nodes=("n0",)).partition == "debug"
    assert _state().switches == ()


def test_a_slurm_that_hides_the_jobs_of_others_is_named_and_nothing_is_counted() -> None:
    found = _state("11|normal|RUNNING|2|n[0-1]\n", job_id="11")
    assert (found.running, found.pending, found.switches[0].jobs) == (None, None, None)
    assert "PrivateData=jobs" in found.problems[0]
    assert found.switches[0].others == 1


def test_states_are_kept_and_damaged_lines_and_links_are_skipped(tmp_path: Path) -> None:
    append_state(tmp_path, _state(job_id="11"))
    with (tmp_path / CLUSTER_FILE).open("a") as file:
        file.write('{"time_ns": 1}\n\x00\n{"time_ns":')
    assert read_states(tmp_path) == [_state(job_id="11")]
    figure = cluster_figure(read_states(tmp_path), (0, 10))
    assert [each["y"] for each in figure["data"]] == [[4], [2], [2]]
    other = tmp_path / "other"
    other.mkdir()
    (other / CLUSTER_FILE).symlink_to("/etc/passwd")
    assert read_states(other) == []
    with pytest.raises(OSError, match=r"symbolic|loop"):
        append_state(other, _state())


def test_a_recorder_adds_a_state_every_five_minutes(tmp_path: Path) -> None:
    now = [0.0]
    done = threading.Event()

    def read() -> ClusterState:
        done.set()
        return _state()

    recorder = ClusterRecorder(tmp_path, {}, read=read, clock=lambda: now[0])
    for second in (0, 10, 16, 310, 317):
        now[0] = float(second)
        done.clear()
        recorder.poll()
        if second in (16, 317):
            assert done.wait(10)
        _join("gipfel-cluster")
    assert len(read_states(tmp_path)) == 2


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)


class _Prometheus(BaseHTTPRequestHandler):
    values = {"alloc": "30", "idle": "5.0", "down": "1", "running": "12"}  # noqa: RUF012 - of the test
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        self.asked.append(query)
        value = next((v for name, v in self.values.items() if name in query), None)
        result = [] if value is None else [{"metric": {}, "value": [1.0, value]}]
        content = json.dumps(
            {"status": "success", "data": {"resultType": "vector", "result": result}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _prometheus() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Prometheus)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_prometheus_is_asked_once_in_30_s_for_all_pages_and_its_silence_is_told(tmp_path: Path) -> None:
    now = [100.0]
    run = tmp_path / "alps-11"
    (run / "telemetry").mkdir(parents=True)
    with _prometheus() as url:
        found = read_prometheus(url, 7)
        assert found.nodes == NodeCounts(allocated=30, idle=5, down=1)
        assert (found.running, found.pending, found.source) == (12, None, url)
        assert found.problems == (f"{url} does not tell: pending.",)
        with pytest.raises(SourceError, match="no metric"):
            read_prometheus(url, 7, {"allocated": "other"})
        _Prometheus.asked.clear()
        around = ClusterAround({}, url, {"allocated": "alloc"}, clock=lambda: now[0])
        ended = around.document(run)
        assert ended == {"state": None, "live": False, "problem": ""}
        for _ in range(3):
            assert around._ask() is not None
        assert len(_Prometheus.asked) == 1
    now[0] += 31
    # The earlier answer stays, with its age, and the page says what is wrong.
    assert around._ask() is not None
    assert "doesn't answer" in around._problem
