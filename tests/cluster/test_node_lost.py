"""A node that dies under a job of two nodes: it is reported while the job runs, and data remains."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from one_machine import OneMachine, wait_until

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.sample import SampleTable
from gipfel_extension.telemetry.store.overview import read_overview
from gipfel_extension.telemetry.store.segments import read_samples

pytestmark = pytest.mark.cluster

_LIMIT_S = 120
#: On the job's first node: the data of a page there, and work on both nodes that continues on one.
_WORK = """
import json, os, subprocess, sys, time
from dataclasses import asdict
from pathlib import Path
from gipfel_extension.server.views import event_texts
from gipfel_extension.telemetry.events import read_events
from gipfel_extension.telemetry.live.feed import SaturationFeed
run = Path(os.environ["GIPFEL_RUN"])
(run / "sockets").write_text(os.environ["GIPFEL_SOCKETS"])
code = '''
import os, sys, time
while not os.path.exists(sys.argv[1] + "/enough"):
    with open(sys.argv[1] + "/beats-" + os.environ["SLURMD_NODENAME"], "a") as file:
        file.write(".")
    time.sleep(0.1)
'''
step = ["srun", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--nodes=2", "--ntasks=2",
        "--ntasks-per-node=1"]
beats = subprocess.Popen([*step, sys.executable, "-c", code, str(run)])
feed = SaturationFeed(run / "telemetry", Path(os.environ["GIPFEL_SOCKETS"]))
while not (run / "enough").exists():
    ends = time.monotonic() + 1.0
    ticks = set()
    while time.monotonic() < ends:
        ticks |= {sample.device for sample in feed.poll(0.2)}
    page = {"state": asdict(feed.state()), "events": event_texts(read_events(run / "telemetry")),
            "heard": sorted(ticks)}
    (run / ".page").write_text(json.dumps(page))
    (run / ".page").replace(run / "page")
beats.wait()
feed.close()
"""


@pytest.fixture(scope="module")
def mortal() -> Iterator[OneMachine]:
    """A separate cluster, of which a node may die."""
    with tempfile.TemporaryDirectory(prefix="gipfel-d-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        with OneMachine(Path(name) / "slurm", silence_s=15) as machine:
            yield machine


class Job:
    """A job on both nodes and its run folder."""

    def __init__(self, cluster: OneMachine, folder: Path, *options: str) -> None:
        spec = JobSpec(
            kind="notebook",
            command=(sys.executable, "-c", _WORK),
            cluster="two",
            interval=0.2,
            sources=("host", "synthetic:training:2"),
        )
        folder.mkdir()
        script = folder / "job.sh"
        script.write_text(batch_script(sys.executable))
        argv = ["sbatch", "--parsable", "--nodes=2", "--gpus-per-node=1", "--ntasks-per-node=2", "--time=15"]
        argv += [f"--output={folder}/job.log", *options]
        argv += [f"--export=ALL,GIPFEL_RUNS={folder}/runs,PATH={os.environ['PATH']}", str(script)]
        os.environ[JOB_VARIABLE] = spec.model_dump_json()
        try:
            self.number = cluster.call(argv).strip()
        finally:
            del os.environ[JOB_VARIABLE]
        self.cluster = cluster
        self.folder = folder
        self.run = folder / "runs" / f"two-{self.number}"
        self.telemetry = self.run / "telemetry"

    def rows(self, node: str) -> int:
        return sum(
            each.rows for each in read_samples(self.telemetry).segments if each.provenance.node == node
        )

    def page(self) -> dict[str, Any]:
        """Return what a page of the job shows now."""
        content: dict[str, Any] = {"state": {"state": ""}, "events": [], "heard": []}
        return json.loads((self.run / "page").read_text()) if (self.run / "page").exists() else content

    def happened(self, kind: str) -> list[str]:
        return [event.node for event in read_events(self.telemetry) if event.kind == kind]

    def slurm_says(self) -> str:
        words = self.cluster.call(["scontrol", "--oneliner", "show", "job", self.number]).split()
        return next(word for word in words if word.startswith("JobState=")).partition("=")[2]

    def processes(self) -> list[int]:
        """Whatever is left of it on this machine."""
        mine = f"SLURM_JOB_ID={self.number}\0".encode()
        conf = f"SLURM_CONF={self.cluster.folder}/slurm.conf\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if mine in content and conf in content:
                found.append(int(path.parent.name))
        return found

    def score(self) -> dict[str, Any]:
        """Return what ``gipfel score`` says of it."""
        argv = [sys.executable, "-m", "gipfel_extension.cli", "score", str(self.run), "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def told(self) -> str:
        """Return what a person would look into."""
        texts = [path.read_text(errors="replace") for path in self.folder.rglob("*.log")]
        texts += [f"{event.kind} {event.node}: {event.message}" for event in read_events(self.telemetry)]
        return "\n".join([*texts, json.dumps(self.page()), self.slurm_says()])


def _times(table: SampleTable, node: str) -> dict[str, set[int]]:
    """Device to the times of its samples, of one node."""
    return {
        device.uuid: set(table[device.uuid]["time_ns"].tolist())
        for device in table.devices
        if device.node == node
    }


def test_a_node_that_dies_is_named_and_nothing_flushed_is_lost(mortal: OneMachine, tmp_path: Path) -> None:
    first, second = mortal.node_names
    going_on = Job(mortal, Path(mortal.folder.parent) / "a", "--no-kill")
    ended = Job(mortal, Path(mortal.folder.parent) / "b", "--no-requeue")
    both = (going_on, ended)
    try:
        for job in both:
            for node in (first, second):
                assert wait_until(lambda j=job, n=node: j.rows(n) > 10, _LIMIT_S), job.told()
            assert wait_until(lambda j=job: j.page()["state"]["state"] == "live", _LIMIT_S), job.told()
            # What the other node sees is live here.
            assert wait_until(lambda j=job: any(second in d for d in j.page()["heard"]), _LIMIT_S), job.told()
            assert wait_until((job.run / f"beats-{second}").exists, _LIMIT_S), job.told()
        before = {job.number: _times(read_samples(job.telemetry), second) for job in both}
        psutil.Process(mortal.pid(second)).send_signal(signal.SIGKILL)
        # At once on the page, whose stream has fallen silent; as an event, when that has lasted.
        words = f"The recorder on {second} has sent nothing for "
        assert wait_until(lambda: words in going_on.page()["state"]["message"], _LIMIT_S), going_on.told()
        assert going_on.page()["state"]["state"] == "stale"
        assert wait_until(lambda: second in going_on.happened("node_lost"), _LIMIT_S), going_on.told()
        # Slurm ends the one job, and leaves the other what is left of its nodes.
        assert wait_until(lambda: ended.slurm_says() == "NODE_FAIL", _LIMIT_S), ended.told()
        assert going_on.slurm_says() == "RUNNING", going_on.told()
        beats = (going_on.run / f"beats-{first}").stat().st_size
        rows = going_on.rows(first)
        assert wait_until(lambda: (going_on.run / f"beats-{first}").stat().st_size > beats, _LIMIT_S)
        assert wait_until(lambda: going_on.rows(first) > rows + 10, _LIMIT_S), going_on.told()
        assert wait_until(
            lambda: (
                ("node_lost", second)
                in [(event["kind"], event["node"]) for event in going_on.page()["events"]]
            ),
            _LIMIT_S,
        ), going_on.told()
        note = f"The recorder on {second} has written no samples for "
        assert any(note in each for each in going_on.score()["notes"]), going_on.score()["notes"]
    finally:
        for job in both:
            job.run.mkdir(parents=True, exist_ok=True)
            (job.run / "enough").touch()
    assert wait_until(lambda: going_on.slurm_says() not in ("RUNNING", "COMPLETING"), _LIMIT_S), (
        going_on.told()
    )
    assert going_on.slurm_says() == "COMPLETED", going_on.told()
    for job in both:
        assert wait_until(lambda j=job: not j.processes(), _LIMIT_S), (job.processes(), job.told())
        record = json.loads((job.run / "record.json").read_text())
        assert record["ended"], job.told()
        table = read_samples(job.telemetry)
        after = _times(table, second)
        for device, times in before[job.number].items():
            assert times
            assert times <= after[device]
        states = {(each.provenance.node, each.state) for each in table.segments}
        assert (first, "closed") in states, job.told()
        assert {state for node, state in states if node == second} <= {"open", "torn"}
        assert not Path((job.run / "sockets").read_text()).exists()
        assert first not in job.happened("node_lost")
        devices = {device.node for device in read_overview(job.telemetry).devices}
        assert devices == {first, second}
    assert going_on.happened("node_lost") == [second], going_on.told()
    # Slurm ends the step of a node that is down: said at most once, not with every attempt to start it.
    # More than once on a busy machine, which starts its step again before Slurm knows of the node's end.
    assert set(going_on.happened("recorder_lost")) <= {first}, going_on.told()
    notes = going_on.score()["notes"]
    assert any(each.startswith(f"{second}: {note}") for each in notes), notes
    assert any(each.startswith(f"The samples of {second} end up to") for each in notes), notes
