"""The cluster of the tests: separate nodes, jobs of plain users, and nothing left after them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from one_machine import OneMachine, missing, wait_until
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError

pytestmark = pytest.mark.cluster

_SCRIPT = Path(__file__).with_name("one_machine.py")


def _submit(cluster: OneMachine, user: str, folder: Path, body: str, *options: str) -> str:
    script = folder / f"job-{time.monotonic_ns()}.sh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    argv = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out-%j.txt", *options, str(script)]
    return cluster.call(argv, user=user).strip()


def _state(cluster: OneMachine, job: str) -> str:
    return cluster.call(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]).strip()


def test_nodes_have_their_own_name_address_shared_memory_and_gpus(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    user = plain_users[0]
    # Left by other tests' jobs of a node: locks of podman, and the directory of checkpoints in memory.
    others = "ls /dev/shm | grep -cv -e ^libpod_ -e ^gipfel-"
    seen = f"hostname; hostname -i; {others}; touch /dev/shm/mine; echo $CUDA_VISIBLE_DEVICES; id -un"
    printed = cluster.call(
        ["srun", "--nodes=2", "--gres=gpu:gh200:3", "--label", "sh", "-c", seen], user=user.name, limit_s=30
    )
    lines = sorted(printed.splitlines())
    values = [[line[3:] for line in lines if line.startswith(f"{rank}:")] for rank in (0, 1)]
    for rank, node in enumerate(cluster.node_names):
        assert set(values[rank]) == {node, cluster.addresses[node], "0", "0,1,2", user.name}
    assert not Path("/dev/shm/mine").exists()


def test_nodes_reach_the_machine_and_each_other_but_nothing_else(cluster: OneMachine) -> None:
    probe = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "0", "--bind", cluster.hub_address],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    ) as server:
        assert server.stdout
        try:
            port = server.stdout.readline().split("port ")[1].split()[0]
            cluster.call(["srun", "/usr/bin/python3", "-c", probe, cluster.hub_address, port], limit_s=30)
            cluster.call(["srun", "--nodelist=node01", "/usr/bin/python3", "-c", probe, "node02", "6818"])
        finally:
            server.terminate()
    with pytest.raises(GipfelError, match="unreachable"):
        cluster.call(["srun", "/usr/bin/python3", "-c", probe, "192.0.2.1", "80"], limit_s=30)


def test_a_cancelled_job_is_asked_first_then_killed_and_leaves_nothing(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    user = plain_users[0]
    body = """
trap 'date +%s > asked' TERM
unshare --user --map-root-user --pid --fork --mount-proc --kill-child sleep 4001 &
(setsid sh -c 'trap "" TERM; sleep 4002' &)
echo started > started
while :; do sleep 1; done
"""
    job = _submit(cluster, user.name, user.home, body)
    assert wait_until((user.home / "started").exists, 20)
    assert len(user.processes()) >= 4
    began = time.time()
    cluster.call(["scancel", job])
    assert wait_until(lambda: not user.processes(), 20)
    assert int((user.home / "asked").read_text()) <= began + 2
    assert time.time() - began >= 3
    assert wait_until(lambda: _state(cluster, job) == "CANCELLED", 10)


def test_an_orphan_that_ignores_its_end_does_not_outlive_its_job(
    cluster: OneMachine, plain_users: tuple[UnixUser, UnixUser]
) -> None:
    user = plain_users[1]
    body = """(setsid sh -c 'trap "" TERM; sleep 4003' &)\nsleep 1"""
    job = _submit(cluster, user.name, user.home, body)
    assert wait_until(lambda: _state(cluster, job) == "COMPLETED", 20)
    assert wait_until(lambda: not user.processes(), 10)


def test_a_second_cluster_comes_and_goes_beside_the_first(cluster: OneMachine, world_folder: Path) -> None:
    with OneMachine(world_folder / "second", nodes=1, gpus=0) as second:
        assert second.addresses["node01"] not in cluster.addresses.values()
        assert second.call(["sinfo", "--noheader", "--partition=debug", "--format=%D %G"]).split() == [
            "1",
            "(null)",
        ]
        pid = second.pid("node01")
    assert not Path(f"/proc/{pid}").exists()
    assert not (world_folder / "second" / "munge").exists()
    assert (
        second.hub_address not in subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True).stdout
    )
    assert cluster.call(["sinfo", "--noheader", "--partition=normal", "--format=%D"]).strip() == "2"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["asked", "killed"])
def test_the_kept_cluster_ends_with_its_keeper(world_folder: Path, number: signal.Signals) -> None:
    folder = world_folder / "kept"
    subprocess.run(
        [sys.executable, _SCRIPT, "up", "--folder", folder, "--nodes", "1"], check=True, timeout=60
    )
    state = json.loads((folder / "state.json").read_text())
    daemons = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _belongs(pid, str(folder))
    ]
    assert len(daemons) >= 5
    os.kill(state["pid"], number)
    assert wait_until(lambda: not any(_belongs(pid, str(folder)) for pid in daemons), 20)
    subprocess.run([sys.executable, _SCRIPT, "down", "--folder", folder], check=True, timeout=60)
    assert not (folder / "state.json").exists()
    assert not (folder / "munge").exists()


def _belongs(pid: int, folder: str) -> bool:
    """Return whether a live process was started for the cluster of a folder."""
    try:
        return f"SLURM_CONF={folder}/slurm.conf".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def test_run_returns_the_status_of_its_command(world_folder: Path) -> None:
    argv = [sys.executable, str(_SCRIPT), "run", "--folder", str(world_folder / "run"), "--nodes", "1", "--"]
    done = subprocess.run(
        [*argv, "sh", "-c", "srun hostname; exit 7"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "node01"


def test_without_root_or_slurm_one_line_says_so(tmp_path: Path) -> None:
    assert missing() is None
    for reason, words in (
        (missing(user_id=1000), "needs root"),
        (missing(path=str(tmp_path)), "apt-get install slurm-wlm"),
    ):
        assert reason
        assert words in reason
        assert "\n" not in reason


def test_the_command_line_answers_a_mistake_with_one_line(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    argv = [sys.executable, str(_SCRIPT), "run", "--folder", str(private / "machine"), "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_folder_that_other_users_can_not_enter_is_refused(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(GipfelError, match="pass through"), OneMachine(private / "machine"):
        pass
