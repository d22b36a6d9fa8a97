"""Connections of a job: the watch of sockets, the record, and a recorder in a network namespace."""

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner

from gipfel_cluster.egress.log import CLOSED, GateLog
from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import gipfel
from gipfel_extension.network import Limits, Owner, Socket, SocketTable, TrafficWatch, read_network
from gipfel_extension.network.record import GateTail, NetworkFile, read_gate
from gipfel_extension.server.network_end import end_job, end_network
from gipfel_extension.telemetry.events import read_events

_S = 10**9


def _connection(
    cookie: int, *, remote: str = "203.0.113.5", port: int = 443, local_port: int = 40000, **kwargs: int
) -> Socket:
    sent, received = kwargs.get("sent", 0), kwargs.get("received", 0)
    return Socket(
        "tcp",
        ip_address("10.1.1.1"),
        local_port,
        ip_address(remote),
        port,
        1000,
        cookie,
        cookie,
        False,
        sent,
        received,
    )


def _listener(cookie: int, port: int, address: str = "0.0.0.0") -> Socket:
    return Socket("tcp", ip_address(address), port, ip_address("0.0.0.0"), 0, 1000, cookie, cookie, True)


def _watch(limits: Limits | None = None, foreign: frozenset[int] = frozenset()) -> TrafficWatch:
    def owner(each: Socket) -> Owner | None:
        return None if each.inode in foreign else Owner("python", 3)

    return TrafficWatch(limits or Limits(), owner)


def test_a_new_destination_outside_is_an_event_once() -> None:
    watch = _watch()
    _, first = watch.update([_connection(1)], [], 1 * _S)
    _, again = watch.update([_connection(1), _connection(2, local_port=40001)], [], 2 * _S)
    _, inside = watch.update([_connection(3, remote="10.1.1.2")], [], 3 * _S)
    assert [kind for kind, _ in first] == ["network_destination"]
    assert "python (rank 3) connects to 203.0.113.5:443 (TCP)" in first[0][1]
    assert not again
    assert not inside
    assert sorted(flow.connections for flow in watch.flows.values()) == [1, 2]


def test_bytes_are_counted_between_dumps_and_at_the_end() -> None:
    watch = _watch()
    watch.update([_connection(1, sent=100, received=10)], [], 1 * _S)
    watch.update([_connection(1, sent=300, received=20)], [], 2 * _S)
    watch.update([], [_connection(1, sent=1000, received=25)], 3 * _S)
    watch.update([_connection(2, sent=7)], [], 4 * _S)
    (flow,) = watch.flows.values()
    assert (flow.sent, flow.received, flow.connections, flow.last_ns) == (1007, 25, 2, 4 * _S)


def test_an_open_port_is_an_event_and_its_clients_are_incoming() -> None:
    watch = _watch()
    client = _connection(2, remote="203.0.113.9", port=51000, local_port=8888)
    _, found = watch.update([_listener(1, 8888), _listener(3, 9999, "10.1.1.1"), client], [], _S)
    assert found == [("network_listener", "python (rank 3) listens on all interfaces, port 8888.")]
    assert {(key.direction, key.port) for key in watch.flows} == {
        ("listen", 8888),
        ("listen", 9999),
        ("in", 8888),
    }


def test_sockets_of_others_and_of_loopback_are_not_recorded() -> None:
    watch = _watch(foreign=frozenset([7]))
    watch.update([_connection(7), _connection(8, remote="127.0.0.1"), _listener(9, 80, "127.0.0.1")], [], _S)
    assert not watch.flows


def test_many_destinations_and_much_data_exceed_the_limits() -> None:
    watch = _watch(Limits.from_environment({"GIPFEL_NETWORK_NEW_PER_MINUTE": "60", "GIPFEL_NETWORK_GB": "1"}))
    kinds: list[str] = []
    for second in range(61):
        each = _connection(
            second + 1, remote=f"203.0.113.{second}", local_port=40000 + second, sent=20_000_000
        )
        kinds += [kind for kind, _ in watch.update([each], [], second * _S)[1]]
    assert kinds.count("network_rate") == 1
    assert kinds.count("network_volume") == 1
    assert kinds.count("network_destination") == 50, "the rest is counted, not reported one by one"


def test_a_slow_sequence_of_destinations_is_below_the_limit() -> None:
    watch = _watch(Limits.from_environment({"GIPFEL_NETWORK_NEW_PER_MINUTE": "5"}))
    kinds: list[str] = []
    for number in range(20):
        each = _connection(number + 1, remote=f"203.0.113.{number}", local_port=40000 + number)
        kinds += [kind for kind, _ in watch.update([each], [], number * 13 * _S)[1]]
    assert "network_rate" not in kinds


@pytest.mark.parametrize(
    "variables",
    [
        {"GIPFEL_NETWORK_NEW_PER_MINUTE": "0"},
        {"GIPFEL_NETWORK_GB": "nan"},
        {"GIPFEL_NETWORK_INSIDE": "10.0.0.0/99"},
    ],
)
def test_a_site_value_that_is_not_valid_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is that of the library
        Limits.from_environment(variables)


def test_the_newest_totals_are_read_and_damaged_lines_are_counted(tmp_path: Path) -> None:
    watch = _watch()
    file = NetworkFile(tmp_path, "n1")
    changed, _ = watch.update([_connection(1, sent=5)], [], _S)
    file.append(watch.flows, changed)
    changed, _ = watch.update([_connection(1, sent=9)], [], 2 * _S)
    file.append(watch.flows, changed)
    path = tmp_path / "network" / "n1.jsonl"
    with path.open("a") as stream:
        stream.write('{"node": 1}\n[[[\n{"node": "n1", "direction": "sideways"}\n')
    record = read_network(tmp_path)
    assert record is not None
    assert [(row.sent, row.rank) for row in record.rows] == [(9, 3)]
    assert record.notes == ("3 damaged lines were skipped.",)
    assert path.stat().st_mode & 0o077 == 0


def test_a_pipe_in_place_of_a_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "network").mkdir()
    os.mkfifo(tmp_path / "network" / "n1.jsonl")
    record = read_network(tmp_path)
    assert record is not None
    assert "n1.jsonl can't be read" in record.notes[0]


def test_a_dump_of_the_kernel_names_this_process(tmp_path: Path) -> None:
    del tmp_path
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.sendall(b"x" * 1000)
        inode = os.fstat(client.fileno()).st_ino
        table = SocketTable()
        found = {each.inode: each for each in table.read()}
        table.close()
        assert found[inode].remote_port == server.getsockname()[1]
        assert found[inode].uid == os.getuid()
        assert found[os.fstat(server.fileno()).st_ino].listening


_PROGRAM = """
import os, socket, subprocess, sys, threading, time
from pathlib import Path

run = Path(sys.argv[1])
server = socket.create_server(("203.0.113.1", 8080))

def serve():
    while True:
        taken, _ = server.accept()
        threading.Thread(target=lambda: [None for _ in iter(lambda: taken.recv(1 << 16), b"")]).start()

threading.Thread(target=serve, daemon=True).start()
open_port = socket.create_server(("", 9090))
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.connect(("203.0.113.1", 53))
argv = [sys.executable, "-m", "gipfel_extension.recorder", "--telemetry", str(run / "telemetry")]
argv += ["--node", "n1", "--source", "host", "--no-rules", "--no-open-files", "--root-pid", str(os.getpid())]
recorder = subprocess.Popen(argv)
def wait_for(text):
    for _ in range(600):
        path = run / "network" / "n1.jsonl"
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.05)
    raise SystemExit("not seen: " + text)
wait_for("9090")
first = socket.create_connection(("203.0.113.1", 8080))
first.sendall(b"x" * 2_000_000)
wait_for('"out", "protocol": "tcp"')
first.sendall(b"x" * 3_000_000)
first.shutdown(socket.SHUT_WR)
first.close()
time.sleep(1.5)
recorder.terminate()
sys.exit(recorder.wait())
"""


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed")
def test_a_recorder_sees_what_a_job_connects_to_sends_and_opens(tmp_path: Path) -> None:
    probe = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine has no network namespaces for plain users")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    setup = 'ip link set lo up && ip addr add 203.0.113.1/32 dev lo && exec "$@"'
    argv = ["unshare", "-rn", "sh", "-c", setup, "sh", sys.executable, str(program), str(run)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = CliRunner().invoke(gipfel, ["net", str(run), "--json"])
    rows = json.loads(result.stdout)["rows"]
    out = next(row for row in rows if row["direction"] == "out" and row["port"] == 8080)
    assert out["sent"] == pytest.approx(5_000_000, abs=10), "what was sent after the last dump counts too"
    assert any(
        row["direction"] == "listen" and row["port"] == 9090 and row["address"] == "0.0.0.0" for row in rows
    )
    assert any(row["protocol"] == "udp" and row["port"] == 53 for row in rows)
    events = {event.kind: event.message for event in read_events(run / "telemetry")}
    assert "listens on all interfaces, port 9090" in events["network_listener"]
    assert "203.0.113.1:8080" in events["network_destination"]
    text = CliRunner().invoke(gipfel, ["net", str(run)]).stdout
    assert "listens on all interfaces of n1, port 9090" in text
    assert "outside, name unknown" in text


def test_the_log_of_a_gate_is_read_once_and_summed_up(tmp_path: Path) -> None:
    log = GateLog(tmp_path / "gate", "n1", pid=1)
    tail = GateTail(tmp_path, "n1")
    allowed = log.note("a.example", 443, "tcp", allowed=True, address="203.0.113.1")
    log.note("b.example", 22, "tcp", allowed=False, reason="not on the allow list")
    log.note("ranks 0 to 3", 0, "outside", allowed=True, reason="It has 2 nodes.")
    assert [(row.kind, row.message) for row in tail.read()] == [
        ("network_allowed", "The gate lets a program reach a.example:443 (TCP)."),
        ("network_refused", "The gate refuses b.example:22 (TCP): not on the allow list."),
        ("network_ungated", "Outside of the gate: ranks 0 to 3 on n1. It has 2 nodes."),
    ]
    assert tail.names == {("203.0.113.1", 443): "a.example"}
    log.add_bytes(allowed, sent=10, received=20)
    log.flush(at_once=True)
    GateLog(tmp_path / "gate", "n1", pid=2).note("a.example", 443, "tcp", allowed=True)
    with (tmp_path / "gate" / "n1-3.jsonl").open("w") as file:
        file.write('{"name": 1}\n[]\n\x00\n' + "[" * 5000 + "\n")
    assert not tail.read()
    record = read_gate(tmp_path)
    (row,) = (row for row in record.rows if row.name == "a.example")
    assert (row.count, row.sent, row.received) == (2, 10, 20)
    assert (record.rows[0].name, record.damaged, record.closed) == ("b.example", 4, "")
    printed = CliRunner().invoke(gipfel, ["net", str(tmp_path)]).stdout.splitlines()
    assert [line.split()[:4] for line in printed if "ranks" in line] == [["no", "gate", "ranks", "0"]]
    (tmp_path / "gate" / CLOSED).write_text("broken")
    assert tail.read_closed()
    assert not tail.read_closed()
    assert "ended" in read_gate(tmp_path).closed


class _Scheduler:
    """A scheduler that knows the job 7, and notes what is cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def query(self, ids: list[str]) -> dict[str, str]:
        return {each: "RUNNING" for each in ids if each == "7"}

    async def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)


def test_the_end_of_a_network_is_audited(tmp_path: Path) -> None:
    lines: list[str] = []
    scheduler, run = _Scheduler(), tmp_path / "net-7"
    (run / "telemetry").mkdir(parents=True)

    def end() -> str:
        return end_job(run, "ada", "it\nleaks", {}, scheduler=scheduler, audit=lines.append)  # type: ignore[arg-type]

    with pytest.raises(GipfelError, match="names no job"):
        end()
    for record, why in (
        ({"job_id": "7", "ended": "2026"}, "ended already"),
        ({"job_id": "8", "ended": None}, "8"),
    ):
        (run / "record.json").write_text(json.dumps(record))
        with pytest.raises(GipfelError, match=why):
            end()
    assert (lines, scheduler.cancelled) == ([], [])
    (run / "record.json").write_text(json.dumps({"job_id": "7", "ended": None}))
    assert not end_network(run, "ada", "it leaks", audit=lines.append)
    assert (end(), scheduler.cancelled) == ("7", ["7"])
    (event,) = read_events(run / "telemetry")
    assert event.message == f"{lines[0]}."
    assert lines[0].startswith("ada ended ")
    assert lines[0].endswith("'s job 7 for its network: it leaks")
    GateLog(run / "gate", "n1").open()
    assert end_network(run, "ada", "it leaks", audit=lines.append)
    assert lines[1].endswith("run net-7: it leaks")
    assert read_gate(run).closed


def test_a_destination_of_a_gate_is_counted_and_not_reported_twice() -> None:
    watch = _watch(Limits(new_destinations=1))
    watch.names = {("203.0.113.5", 443): "a.example"}
    watch.count_refused(1, 1 * _S)
    _, found = watch.update([_connection(1)], [], 1 * _S)
    assert [kind for kind, _ in found] == ["network_rate"]
