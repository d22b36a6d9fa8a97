"""A recorder on every node of a job, started and ended with it; its end is recorded."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from images import Images
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.edf.gate import Gate
from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON
from gipfel_extension.network import read_gate, read_network
from gipfel_extension.server.job_tabs import ClusterAround
from gipfel_extension.server.security import shared_security
from gipfel_extension.telemetry.events import Event, read_events
from gipfel_extension.telemetry.ranks import read_ranks
from gipfel_extension.telemetry.store.segments import read_samples
from gipfel_extension.topology.cluster import ClusterState, NodeCounts, read_states
from gipfel_extension.topology.read import read_topology
from gipfel_spawner.handlers.security import SharedSecurity

pytestmark = pytest.mark.cluster

_LIMIT_S = 90
_WORK = """
import os, socket, subprocess, sys, time
from contextlib import closing
from pathlib import Path
opened = socket.create_server(("", 0))
from gipfel_extension.telemetry.live import LiveReader
run = os.environ["GIPFEL_RUN"]
seen, ends = set(), time.monotonic() + 60
with closing(LiveReader(Path(os.environ["GIPFEL_SOCKETS"]))) as reader:
    while len(seen) < 2 and time.monotonic() < ends:
        tick = reader.receive(1.0)
        seen |= {tick.origin.node} if tick else set()
Path(run, "seen").write_text(" ".join(sorted(seen)))
code = '''
import os, socket, sys, time
opened = socket.create_server(('', 0))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
'''
step = ["srun", "--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", sys.executable, "-c", code]
sys.exit(subprocess.run([*step, os.path.join(run, "enough")]).returncode)
"""


def _recorders(telemetry: Path, node: str, *, kept: bool = True) -> list[int]:
    """The recorders of a run on a node, and who keeps them where `kept` says so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            environment = path.with_name("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = b"gipfel_extension.recorder" in words and str(telemetry).encode() in words
        ours = ours and (kept or b"gipfel_cluster.process.supervisor" not in words)
        if ours and f"SLURMD_NODENAME={node}".encode() in environment:
            found.append(int(path.parent.name))
    return found


def _check_topology(run: Path) -> None:
    """Assert that the run has the switches that Slurm's tree plugin has, and that they are printed."""
    topology = read_topology(run)
    assert topology.source == "tree"
    assert topology.paths == {"node01": ("root", "leaf1"), "node02": ("root", "leaf2")}
    printed = subprocess.run(
        [sys.executable, "-m", "gipfel_extension.cli", "topology", str(run)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "leaf1" in printed
    assert "leaf2" in printed


def _check_cluster(run: Path, cluster: OneMachine) -> None:
    """Assert that the recorder stored the cluster around the job, and that a page is shown it live."""
    assert wait_until(lambda: bool(read_states(run)), _LIMIT_S)
    stored = read_states(run)[0]
    around = ClusterAround(cluster.environment)
    shown = around.document(run)
    assert (shown["live"], shown["problem"]) == (True, "")
    for found in (stored, ClusterState.model_validate(shown["state"])):
        assert found.source == "sinfo and squeue"
        assert found.nodes == NodeCounts(allocated=2)
        assert (found.partition, found.running, found.pending) == ("normal", 1, 0)
        assert [(each.name, each.own, each.jobs) for each in found.switches] == [
            ("leaf1", 1, 0),
            ("leaf2", 1, 0),
        ]


def test_every_node_is_recorded_from_beginning_to_end(cluster: OneMachine, world_folder: Path) -> None:
    spec = JobSpec(
        kind="notebook",
        command=(sys.executable, "-c", _WORK),
        cluster="two",
        interval=0.2,
        sources=("host", "synthetic:training:2"),
    )
    script = world_folder / "job.sh"
    script.write_text(batch_script(sys.executable))
    runs = world_folder / "runs"
    argv = [
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--gpus-per-node=1",
        "--time=5",
        f"--output={world_folder}/job.log",
    ]
    argv += [f"--export=ALL,GIPFEL_RUNS={runs},PATH={os.environ['PATH']}", str(script)]
    os.environ[JOB_VARIABLE] = spec.model_dump_json()
    try:
        job = cluster.call(argv).strip()
    finally:
        del os.environ[JOB_VARIABLE]
    run = runs / f"two-{job}"
    telemetry = run / "telemetry"
    first, second = cluster.node_names

    def segments(node: str) -> list[int]:
        """Rows of the node's segments; each recorder begins another."""
        found = read_samples(telemetry).segments
        return [each.rows for each in found if each.provenance.node == node and each.rows]

    def rows(node: str) -> int:
        return sum(segments(node))

    try:
        assert wait_until(lambda: rows(first) > 3 and rows(second) > 3, _LIMIT_S), _told(run, world_folder)
        assert wait_until((run / "seen").exists, _LIMIT_S), _told(run, world_folder)
        # What the other node sees is live here, too.
        assert (run / "seen").read_text().split() == [first, second], _told(run, world_folder)
        _check_topology(run)
        _check_cluster(run, cluster)
        # Both are killed: the job continues.
        before = rows(second)
        (pid,) = _recorders(telemetry, second, kept=False)
        (keeper,) = set(_recorders(telemetry, second)) - {pid}
        # Its step took nothing from the work's, and sees the one GPU that the job has there, whichever it is.
        variables = dict(
            each.partition(b"=")[::2] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
        assert variables[b"CUDA_VISIBLE_DEVICES"].isdigit()
        os.kill(pid, signal.SIGKILL)
        # Both are restarted, and the step continues.
        (here,) = _recorders(telemetry, first, kept=False)
        os.kill(here, signal.SIGKILL)
        for node, lost in ((first, here), (second, pid)):
            assert wait_until(
                lambda n=node, p=lost: set(_recorders(telemetry, n, kept=False)) - {p}, _LIMIT_S
            )
        # The new ones record: what the old ones wrote last may have come after their rows were counted.
        for node in (first, second):
            assert wait_until(lambda n=node: len(segments(n)) > 1, _LIMIT_S), _told(run, world_folder)
        assert rows(second) > before
        assert keeper in _recorders(telemetry, second)
        assert wait_until(lambda: {place.rank for place in read_ranks(telemetry)} == {0, 1}, _LIMIT_S)
    finally:
        (run / "enough").touch()
        ended = wait_until(
            lambda: not cluster.call(["squeue", "--noheader", f"--job={job}"]).strip(), _LIMIT_S
        )
        if not ended:
            cluster.call(["scancel", job])
    assert ended
    assert wait_until(lambda: json.loads((run / "record.json").read_text())["ended"], _LIMIT_S)
    assert json.loads((run / "record.json").read_text())["exit_status"] == 0, _told(run, world_folder)
    states = {(each.provenance.node, each.state) for each in read_samples(telemetry).segments}
    # Of the one that was killed everything up to its last write is there.
    assert (first, "closed") in states
    assert (second, "closed") in states
    assert {state for node, state in states if node == second} - {"closed"} <= {"open", "torn"}
    events = read_events(telemetry)
    # Each node has seen the port that its own program of the job opened.
    assert {each.node for each in events if each.kind == "network_listener"} == {first, second}
    connections = read_network(run)
    assert connections is not None
    opened = {(each.node, each.rank is None) for each in connections.rows if each.all_interfaces}
    assert opened >= {(first, True), (second, False)}
    assert sorted(each.node for each in events if each.kind == "recorder_lost") == [first, second]
    assert [each.node for each in events if each.kind == "recorder_ended"].count(second) == 1
    for node in (first, second):
        end = json.loads((telemetry / f"{node}.recorder.json").read_text())
        assert (end["description"], end["expected"], end["unexpected_ends"]) == ("SIGKILL", False, 1)
    assert {(place.rank, place.node) for place in read_ranks(telemetry)} == {(0, first), (1, second)}
    assert not _recorders(telemetry, first)
    assert not _recorders(telemetry, second)


def _told(run: Path, folder: Path) -> str:
    """Return what a person would look into."""
    texts = [path.read_text(errors="replace") for path in (*run.glob("*.log"), *folder.glob("*.log"))]
    return "\n".join([*texts, *(event.message for event in read_events(run / "telemetry"))])


def _runs(cluster: OneMachine, job: str) -> bool:
    return cluster.call(["squeue", "--noheader", "--format=%T", f"--job={job}"]).strip() == "RUNNING"


def _end_network(run: Path, user: UnixUser, gipfel: str, runs: Callable[[], bool]) -> None:
    """End the network of a batch job that no hub has started, as an operator does with sudo."""
    began = time.monotonic()
    variables = [f"HOME={user.home}", "PATH=/usr/bin:/bin", "SUDO_USER=ada"]
    done = user.run("env", "-i", *variables, gipfel, "net", str(run), "--end", "it crawls")
    assert done.returncode == 0, done.stderr

    def ended() -> list[Event]:
        return [event for event in read_events(run / "telemetry") if event.kind == "network_closed"]

    assert wait_until(lambda: bool(ended()), _LIMIT_S), _told(run, user.home)
    assert ended()[0].message == "Ada ended the network of this job: it crawls."
    assert time.monotonic() - began < 10
    assert runs(), "the job itself continues"


def _is_over(run: Path) -> bool:
    """Return whether a job exceeded both limits of the site, and has sent all that it wants to send."""
    kinds = {event.kind for event in read_events(run / "telemetry")}
    found = read_network(run)
    sent = max((row.sent or 0 for row in found.rows), default=0) if found else 0
    return kinds >= {"network_rate", "network_volume"} and sent >= 12 * 100_000


def _end_job(run: Path, user: UnixUser, gipfel: str, cluster: OneMachine) -> None:
    """End a job without a gate for its network, as an operator does, once its limits are exceeded."""
    assert wait_until(lambda: _is_over(run), _LIMIT_S), _told(run, user.home)
    # What the job's server tells the hub for the operators' page.
    shown = SharedSecurity.model_validate(shared_security(run, {})).texts
    assert "▲ network over the limit" in shown
    variables = ["env", "-i", f"HOME={user.home}", "PATH=/usr/bin:/bin", "SUDO_USER=ada"]
    variables += [f"{name}={value}" for name, value in cluster.environment.items()]
    words = (gipfel, "net", str(run), "--end", "it leaks")
    refused = user.run(*variables, *words)
    assert (refused.returncode, "--end-job" in refused.stderr) == (1, True), refused.stderr
    done = user.run(*variables, *words, "--end-job")
    assert done.returncode == 0, done.stderr
    assert f"Job {run.name.removeprefix('net-')} ends" in done.stderr
    events = [event.message for event in read_events(run / "telemetry") if event.kind == "network_closed"]
    assert events == [
        f"ada ended {user.name}'s job {run.name.removeprefix('net-')} for its network: it leaks."
    ]


#: Seconds between two looks of the recorder at connections.
_INTERVAL_S = 1.0
_LEAK = """
import os, socket, sys, time
host, port, wait = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
opened = socket.create_server(("", 0))
question = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4leak\\7example\\0\\0\\1\\0\\1"
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.connect((host, 53))
kept = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for place, each in enumerate(kept):
    each.connect((host, 54 + place))
print("began", time.time_ns(), flush=True)
for _ in range(12):
    try:
        asked.send(question)
    except ConnectionRefusedError:
        pass  # the answer to the question before: no server has this port
    try:
        leak = socket.create_connection((host, port), 2)
        leak.sendall(bytes(100_000))
        kept.append(leak)
        print("sent", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
    time.sleep(0.5)
latest = time.monotonic() + 60
while wait and not os.path.exists(wait[0]) and time.monotonic() < latest:
    time.sleep(0.2)
"""


@pytest.mark.parametrize("gate", [None, Gate()], ids=["open", "gated"])
def test_a_job_that_leaks_is_seen_and_with_a_gate_refused(
    gate: Gate | None,
    cluster: OneMachine,
    plain_users: tuple[UnixUser, UnixUser],
    runtime: Path,
    images: Images,
    fuse: None,
) -> None:
    user = plain_users[0]
    user.write(".edf/leak.toml", f'image = "{images.debian}"\n')
    user.write("leak.py", _LEAK)
    user.write("job.sh", batch_script(f"{runtime}/bin/python3"))
    with socket.create_server((cluster.hub_address, 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        enough = user.home / "enough"
        wait = (str(enough),)
        spec = JobSpec(
            kind="notebook",
            command=(PYTHON, "-c", _LEAK, cluster.hub_address, str(port), *wait),
            cluster="net",
            edf="leak",
            runtime=str(runtime),
            sources=("host",),
            network=gate,
        )
        variables = {
            **cluster.environment,
            "PATH": "/usr/bin:/bin",
            "HOME": str(user.home),
            "USER": user.name,
            # The network of this test is outside.
            "GIPFEL_NETWORK_INSIDE": "192.0.2.0/24",
            "GIPFEL_NETWORK_NEW_PER_MINUTE": "2",
            "GIPFEL_NETWORK_GB": "0.0005",
            JOB_VARIABLE: spec.model_dump_json(),
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        words = ["sbatch", "--parsable", f"--output={user.home}/leak-%j.log", f"--chdir={user.home}"]
        done = user.run("env", "-i", *settings, *words, str(user.home / "job.sh"))
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        run = user.home / f".gipfel/runs/net-{job}"
        place = f"{cluster.hub_address}:{port}"

        def seen() -> list[Event]:
            kinds = ("network_destination", "network_refused")
            found = read_events(run / "telemetry")
            return [each for each in found if each.kind in kinds and place in each.message]

        try:
            assert wait_until(lambda: bool(seen()), _LIMIT_S), _told(run, user.home)
            if gate:
                _end_network(run, user, f"{runtime}/bin/gipfel", lambda: _runs(cluster, job))
                enough.touch()
            else:
                _end_job(run, user, f"{runtime}/bin/gipfel", cluster)
            assert wait_until(
                lambda: not cluster.call(["squeue", "--noheader", f"--job={job}"]).strip(), _LIMIT_S
            )
        finally:
            cluster.call(["scancel", "--quiet", job])
        received = 0
        with contextlib.suppress(TimeoutError):
            while True:
                client, _ = server.accept()
                received += len(client.recv(100_000, socket.MSG_WAITALL))
    printed = (user.home / f"leak-{job}.log").read_text()
    told = _told(run, user.home)
    (event,) = seen()
    # The recorder looks once a second, and the job itself says when it began.
    began_ns = int(next(line for line in printed.splitlines() if line.startswith("began")).split()[1])
    later_s = (event.time_ns - began_ns) / 1e9
    assert 0 < later_s < 2 * _INTERVAL_S, f"seen after {later_s:.2f} s. {told}"
    record = read_network(run)
    if gate is None:
        assert received == 12 * 100_000, told
        assert event.kind == "network_destination"
        assert record is not None
        (row,) = (row for row in record.rows if row.port == port)
        # The last connection begins and ends with the job.
        assert 10 * 100_000 <= (row.sent or 0) <= received + 1000
        assert abs(row.first_ns - began_ns) < 2 * _INTERVAL_S * 10**9
        assert (cluster.hub_address, 53, "udp") in {
            (row.address, row.port, row.protocol) for row in record.rows
        }
        assert any(row.all_interfaces for row in record.rows)
        return
    assert received == 0
    assert "sent" not in printed, printed
    assert "ConnectionRefusedError" in printed
    assert event.kind == "network_refused"
    gated = {(row.name, row.protocol): row for row in read_gate(run).rows}
    assert gated[cluster.hub_address, "tcp"].count == 12
    assert not gated["leak.example", "dns"].allowed
    assert abs(gated[cluster.hub_address, "tcp"].first_ns - began_ns) < _INTERVAL_S * 10**9
    assert record is None or not [row for row in record.rows if row.address == cluster.hub_address]
