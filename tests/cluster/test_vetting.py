"""Vetting on four real nodes: each fault is found, nothing hangs, and no process is left."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import images as image_builder
import pytest
from edf_files import write_edf
from four_nodes import VET, FourNodes
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON, GipfelError
from gipfel_extension.vetting.report import VettingReport

pytestmark = pytest.mark.cluster

_OWN = """
name: own checks
time_limit: 120 s
checks:
- {{name: wrong value, type: environment, parameters: {{expected: {{NCCL_NET: "AWS Libfabric"}}}}}}
- {{name: shared memory, type: shared_memory, parameters: {{min_free: 256 MiB, write: 4 MiB}}}}
- {{name: paths, type: mounts, parameters: {{paths: {{"{data}/marker": read}}}}}}
"""
_OVER_ALL = """
name: over all
time_limit: 170 s
checks:
- {name: value, type: environment, parameters: {expected: {NOT_THERE: null}}}
- name: all together
  type: collective
  scope: all
  time_limit: 60 s
  parameters: {payload: 8 MB, samples: 500, warmup_payload: 1 MB}
"""
_PAIRS = """
name: pairs
time_limit: 170 s
checks:
- name: links
  type: collective
  scope: pair
  time_limit: 40 s
  parameters: {payload: 2 MB, samples: 5, warmup_payload: 64 kB, warmup_runs: 1,
               pairs: {bad_below: 0.3, degraded_below: 0.2}}
"""
_IN_CONTAINERS = """
name: containers
time_limit: 200 s
checks:
- {name: container, type: container, time_limit: 60 s}
- name: all together
  type: collective
  scope: all
  time_limit: 60 s
  parameters: {payload: 1 MB, samples: 5}
"""
_CONTAINERS_S = 240
_ALL_GOOD_VALUE = 'export NCCL_NET="AWS Libfabric"'


@pytest.fixture(scope="module")
def four(shared_folder: Path) -> Iterator[FourNodes]:
    folder = shared_folder / "vetting"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "marker").touch()
    with OneMachine(shared_folder / "four", nodes=4, gpus=0) as machine:
        yield FourNodes(machine, folder)


def test_faults_of_nodes_are_named_and_the_good_ones_remain(four: FourNodes) -> None:
    data = f"{four.folder}/data"
    wrong = f'{_ALL_GOOD_VALUE}; [ "$SLURMD_NODENAME" = node03 ] && export NCCL_NET=Socket'
    fill = ("sh", "-c", "head -c 3G /dev/zero >/dev/shm/full 2>/dev/null || true")
    with (
        four.fault("node02", fill, ("rm", "/dev/shm/full")),
        four.fault("node04", ("mount", "-t", "tmpfs", "tmpfs", data), ("umount", data)),
    ):
        vetted = four.vet(_OWN.format(data=data), "--action", "shrink", "--min-nodes", "1", before=wrong)
    assert vetted.status == 0, vetted.stderr
    assert vetted.of("node02", "shared memory")["verdict"] == "fail"
    assert "/dev/shm" in vetted.of("node02", "shared memory")["reason"]
    assert vetted.of("node03", "wrong value")["verdict"] == "fail"
    assert "NCCL_NET" in vetted.of("node03", "wrong value")["reason"]
    assert vetted.of("node04", "paths")["verdict"] == "fail"
    assert "marker" in vetted.of("node04", "paths")["reason"]
    report = VettingReport.model_validate(vetted.report)
    assert (report.complete, report.good_nodes, report.exclude) == (True, ("node01",), "node[02-04]")
    assert "--nodelist=node01" in report.outcome
    folder = vetted.folder
    assert (folder / "good_nodes.txt").read_text() == "node01\n"
    assert (folder / "bad_nodes.txt").read_text().split() == ["node02", "node03", "node04"]
    assert {
        path.stat().st_mode & 0o077 for path in (folder, folder / "vetting", folder / "vetting.json")
    } == {0}
    assert max(map(len, vetted.stdout.splitlines())) <= 80
    assert "\033" not in vetted.stdout


def test_a_killed_rank_a_stopped_rank_and_a_stopped_agent_are_each_named(four: FourNodes) -> None:
    run = four.start(_OVER_ALL)
    run.send("node04", "collective.py", signal.SIGKILL)
    assert wait_until(lambda: any(each["node"] == "node04" for each in _bad(run.report())), 60)
    run.send("node03", "collective.py", signal.SIGSTOP)
    assert wait_until(lambda: any(each["node"] == "node03" for each in _bad(run.report())), 60)
    # It is given up, and ended by its own worker, so that its task does not hold the step.
    run.send("node02", "gipfel_extension.cli vet", signal.SIGSTOP)
    vetted = run.wait()
    assert vetted.status != 0
    killed, stopped = vetted.of("node04", "all together"), vetted.of("node03", "all together")
    assert (killed["verdict"], stopped["verdict"]) == ("fail", "fail")
    assert "killed by signal 9" in killed["reason"]
    assert "stopped by SIGSTOP" in stopped["reason"]
    lost = vetted.of("node02", "agent")
    assert lost["verdict"] == "fail"
    assert "stopped or hangs" in lost["reason"]
    assert "all together" in lost["reason"]
    assert vetted.report["good_nodes"] == []
    assert vetted.seconds < 170
    assert wait_until(lambda: not run.processes(), 10), run.processes()


def _bad(report: dict) -> list[dict]:
    return [each for each in report.get("results", []) if each["verdict"] == "fail"]


def test_a_killed_agent_is_lost_and_the_rest_goes_on(four: FourNodes) -> None:
    run = four.start(_OVER_ALL.replace("500", "20"), "--action", "shrink", "--min-nodes", "3")
    run.pid_of("node03", "run.worker")
    run.send("node03", "gipfel_extension.cli vet", signal.SIGKILL)
    vetted = run.wait()
    assert "was killed, or the node lost its network" in vetted.of("node03", "agent")["reason"]
    assert vetted.report["good_nodes"] == ["node01", "node02", "node04"], vetted.stdout
    assert vetted.report["exit_status"] == 0
    # Slurm's own word for the step: the highest status of its tasks.
    assert vetted.status == 137


def test_a_slow_link_is_named_by_pairs(four: FourNodes) -> None:
    # All links are rate-limited, so that measurements don't depend on the load of this machine.
    with contextlib.ExitStack() as links:
        for node in four.machine.node_names:
            rate = "70mbit" if node == "node03" else "200mbit"
            bucket = ("tbf", "rate", rate, "burst", "64kbit", "latency", "400ms")
            device = ("dev", "eth0", "root")
            undo = ("tc", "qdisc", "del", *device)
            links.enter_context(four.fault(node, ("tc", "qdisc", "add", *device, *bucket), undo))
        vetted = four.vet(_PAIRS)
    assert vetted.status == 1
    assert vetted.report["bad_nodes"] == ["node03"], vetted.stdout
    slow = vetted.of("node03", "links")
    assert slow["verdict"] == "fail"
    assert "node03" in vetted.stdout
    assert vetted.report["exclude"] == "node03"
    assert vetted.seconds < 170


def test_an_interrupt_leaves_a_report_and_nothing_else(four: FourNodes) -> None:
    """Called once in a batch script, which starts an agent on every node; only the caller gets the signal."""
    runs, out = four.folder / "interrupted", four.folder / "interrupted.txt"
    protocol = four.folder / "long.yaml"
    protocol.write_text(_OVER_ALL)
    script = four.folder / "interrupted.sh"
    script.write_text(
        f"#!/bin/sh\nexport GIPFEL_RUNS={runs} GIPFEL_VETTING_HISTORY={four.folder}/history\n"
        f"{' '.join(VET)} {protocol}\necho $? >{out}\n"
    )
    four.machine.call(["sbatch", "--nodes=4", "--output=/dev/null", str(script)])

    def ranks() -> list[int]:
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _has(pid, runs, "collective.py")
        ]

    assert wait_until(lambda: len(ranks()) == 4, 90)
    (caller,) = (
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, runs, " vet ")
    )
    os.kill(caller, signal.SIGINT)
    assert wait_until(out.exists, 60)
    assert out.read_text() == "1\n"
    (path,) = runs.glob("*/vetting.json")
    report = json.loads(path.read_text())
    assert not report["complete"]
    assert report["ended_ns"]
    assert "interrupted by SIGINT" in report["outcome"]
    assert {each["verdict"] for each in report["results"] if each["check"] == "all together"} == {"not_run"}
    assert {each["verdict"] for each in report["results"] if each["check"] == "value"} == {"pass"}
    mine = f"GIPFEL_RUNS={runs}"
    assert wait_until(lambda: not any(_has(pid, runs, "") for pid in _pids()), 20), mine


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has(pid: int, runs: Path, words: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        command += Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return False
    return f"GIPFEL_RUNS={runs}".encode() in environ and words in command and "gipfel_extension" in command


def test_a_job_is_submitted_again_without_its_bad_node(four: FourNodes) -> None:
    folder = four.folder / "again"
    folder.mkdir()
    protocol = folder / "protocol.yaml"
    data = f"{four.folder}/data"
    protocol.write_text(_OWN.format(data=data))
    script = folder / "job.sh"
    script.write_text(
        f"#!/bin/sh\n#SBATCH --nodes=2\n{_ALL_GOOD_VALUE}\n"
        f"export GIPFEL_RUNS={folder}/runs GIPFEL_VETTING_HISTORY={folder}/history\n"
        f"{' '.join(VET)} {protocol} --action exclude || exit 3\n"
        f'echo "$SLURM_JOB_NODELIST $GIPFEL_VET_RESUBMITTED" >{folder}/trained\n'
    )
    with four.fault("node02", ("mount", "-t", "tmpfs", "tmpfs", data), ("umount", data)):
        four.machine.call(
            ["sbatch", "--exclude=node04", f"--output={folder}/out-%j.txt", "--job-name=again", str(script)]
        )
        assert wait_until((folder / "trained").exists, 180), _logs(folder) + _queue(four)
    assert (folder / "trained").read_text() == "node[01,03] 1\n"
    reports = sorted(folder.glob("runs/*/vetting.json"), key=os.path.getmtime)
    first, second = (json.loads(each.read_text()) for each in reports)
    assert (first["bad_nodes"], first["exit_status"]) == (["node02"], 1)
    assert "resubmitted as job" in first["outcome"]
    assert "--exclude=node[02,04]" in first["outcome"]
    assert (second["good_nodes"], second["exit_status"]) == (["node01", "node03"], 0)


def _queue(four: FourNodes) -> str:
    return four.machine.call(["squeue", "--long"]) + four.machine.call(["sinfo", "--Node", "--long"])


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("out-*.txt"))


def test_in_containers_the_agents_are_started_through_the_broker_and_torch_is_the_images(
    four: FourNodes, runtime: Path, plain_users: tuple[UnixUser, UnixUser], fuse: None
) -> None:
    try:
        image = image_builder.torch_image()
    except GipfelError as error:
        pytest.skip(str(error))
    user = plain_users[0]
    write_edf(user, "torch", image=image, mounts=(f"{user.home}/vet:/vet",))
    user.write("vet/protocol.yaml", _IN_CONTAINERS)
    command = (
        PYTHON,
        "-I",
        "-m",
        "gipfel_extension.cli",
        "vet",
        "/vet/protocol.yaml",
        "--json",
        "/vet/out.json",
    )
    spec = JobSpec(kind="notebook", command=command, cluster="tests", edf="torch", runtime=str(runtime))
    script = user.write("vet/job.sh", batch_script(f"{runtime}/bin/python3"), 0o700)
    variables = {
        **four.machine.environment,
        JOB_VARIABLE: spec.model_dump_json(),
        "HOME": str(user.home),
        "PATH": os.environ.get("PATH", os.defpath),
    }
    argv = ["env", "-i", f"--chdir={user.home}/vet", *(f"{key}={each}" for key, each in variables.items())]
    log = user.home / "vet" / "log.txt"
    done = user.run(
        *argv, "sbatch", "--wait", "--nodes=2", f"--output={log}", str(script), limit_s=_CONTAINERS_S
    )
    assert done.returncode == 0, f"{done.stderr} {log.read_text()}"
    report = VettingReport.model_validate_json((user.home / "vet" / "out.json").read_text())
    # One more than the one that coordinates: others come in the same way.
    assert len(report.good_nodes) == 2
    evidence = {each.node: each.evidence for each in report.results if each.check == "container"}
    assert {str(each["torch"]).partition("+")[0] for each in evidence.values()} == {image_builder.TORCH}
    assert {each["user"] for each in evidence.values()} == {user.name}
    assert wait_until(lambda: not user.processes(), 20)
