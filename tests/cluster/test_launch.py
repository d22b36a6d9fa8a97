"""Launches as separate jobs: each launcher, broken ranks, elastic nodes, time limits."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import images as image_builder
import pytest
from launches import HOSTILE, LIMIT_S, LaunchPlace, Started, reference
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

import gipfel_cluster
import gipfel_extension
import gipfel_widgets
from gipfel_cluster.model import GipfelError
from gipfel_extension.data.checkpoints import find_checkpoints
from gipfel_extension.network import read_gate

pytestmark = pytest.mark.cluster

_WARNED = """\
[annotations.com.gipfel.network]
allow = "example.org"
mode = "warn"
"""


@pytest.fixture(scope="module")
def place(
    cluster: OneMachine, runtime: Path, plain_users: tuple[UnixUser, UnixUser], fuse: None
) -> LaunchPlace:
    try:
        image = image_builder.torch_image()
        more = image_builder.accelerate_folder()
    except GipfelError as error:
        pytest.skip(str(error))
    return LaunchPlace.prepare(plain_users[0], cluster, runtime, image, more)


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "accelerate"])
def test_four_ranks_on_two_nodes_find_each_other(place: LaunchPlace, launcher: str) -> None:
    how = ("--launcher", launcher, "--nodes", "2", "--gpus-per-node", "2", "--env", "MINE=x y")
    if launcher == "srun":
        edf = (place.user.home / ".edf/torch.toml").read_text()
        place.user.write(".edf/warned.toml", f"{edf}\n{_WARNED}")
        how = (*how, "--edf", "warned")
    started = place.launched(*how, "--", "reduce.py", *HOSTILE).wait()
    assert started.state["outcome"] == "completed", started.everything()
    told = sorted(started.told(), key=lambda each: each["rank"])
    assert [(each["rank"], each["world"], each["sum"]) for each in told] == [(n, 4, 10.0) for n in range(4)]
    assert {each["node"] for each in told} == set(place.cluster.node_names)
    assert all(tuple(each["words"]) == HOSTILE for each in told)
    assert {each["address"] for each in told} == {place.cluster.addresses[started.state["nodes"][0]]}
    assert {each["mine"] for each in told} == {"x y"}
    assert all(len(each["gpus"].split(",")) == 2 for each in told)
    if launcher == "srun":
        rows = read_gate(Path(started.state["run"])).rows
        named = {(row.name, row.node) for row in rows if row.protocol == "outside"}
        assert named == {(f"rank {each['rank']}", each["node"]) for each in told}
        assert "A launch on 2 nodes can't run behind a gate" in rows[0].reason
    else:
        assert {tuple(each["leaked"]) for each in told} == {()}
    command = (started.folder / "command.txt").read_text()
    assert "srun --overlap --nodes=2" in command
    assert "reduce.py" in command
    assert not Path("/tmp/pwned").exists()
    shown = place.gipfel("launch", "logs", started.folder.name)
    assert shown.stdout.count("TOLD") == 4
    assert shown.stdout.startswith("r")
    assert place.nothing_left()


def test_ranks_of_one_node_find_each_other_behind_a_gate_and_those_of_two_are_refused(
    place: LaunchPlace, tmp_path: Path
) -> None:
    how = ("--nodes", "2", "--allow-host", "example.org", "--", "reduce.py")
    refused = place.gipfel("launch", "--edf", "torch", *how)
    assert refused.returncode == 1
    assert "A launch on 2 nodes can't run behind a gate" in refused.stderr
    words = ("--nodes", "1", "--gpus-per-node", "2", "--no-network", "--no-preflight", "--", "reduce.py")
    started = place.launched(*words, *HOSTILE).wait()
    assert started.state["outcome"] == "completed", started.everything()
    assert sorted(each["sum"] for each in started.told()) == [3.0, 3.0]
    assert read_gate(Path(started.state["run"])).used
    # Training of several steps: each averages gradients over gloo, and the weights are those without a gate.
    words = (
        "--nodes",
        "1",
        "--gpus-per-node",
        "2",
        "--no-network",
        "--no-preflight",
        "--checkpoint",
        "gated",
    )
    trained = place.launched(*words, "--", "train.py", "steps=12").wait()
    assert trained.state["outcome"] == "completed", trained.everything()
    assert ("START 0 world 2" in trained.log(0), trained.steps()) == (True, 12)
    assert trained.final() == reference(12, tmp_path)
    assert read_gate(Path(trained.state["run"])).used
    assert place.nothing_left()


def test_a_killed_rank_is_started_again_and_the_weights_are_those_of_an_undisturbed_run(
    place: LaunchPlace, tmp_path: Path
) -> None:
    both = ("--nodes", "2", "--gpus-per-node", "1", "--restarts", "1", "--no-preflight")
    program = ("--", "train.py", "steps=12", "kill=1:5")
    runs = [
        place.launched("--launcher", launcher, *both, "--checkpoint", f"killed-{launcher}", *program)
        for launcher in ("torchrun", "srun")
    ]
    for started in runs:
        started.wait()
        assert started.state["outcome"] == "completed", started.everything()
        assert started.state["restarts"] == 1
        assert "START 5 world 2 resume 1" in started.log(0)
        assert started.final() == reference(12, tmp_path)
    assert place.nothing_left()


def test_a_node_leaves_and_comes_back_and_meanwhile_the_first_failing_rank_is_named(
    place: LaunchPlace, tmp_path: Path
) -> None:
    words = ("--restarts", "3", "--checkpoint", "elastic", "--join-timeout", "3", "--no-preflight")
    elastic = place.launched("--nodes", "1:2", *words, "--", "train.py", "steps=100000", "pause=0.2")
    elastic.until(3)
    _look_into(place, elastic)
    leaving = next(node for node in elastic.state["nodes"] if node != elastic.state["nodes"][0])
    place.kill("torch.distributed.run", node=leaving)
    how = ("--nodes", "2", "--gpus-per-node", "1", "--checkpoint", "failed", "--no-preflight", "--wait")
    done = place.gipfel("launch", "--edf", "torch", *how, "--", "train.py", "fail=1:3")
    assert done.returncode == 1, done.stderr
    assert "rank 1 on node02: ValueError: the loss went to the moon" in done.stderr
    assert "r1 | ValueError: the loss went to the moon" in done.stdout
    shown = place.gipfel("launch", "show")
    assert 'raise ValueError("the loss went to the moon")' in shown.stdout
    assert "run.py" not in shown.stdout
    assert wait_until(lambda: elastic.worlds()[:2] == ["2", "1"], LIMIT_S), elastic.everything()
    assert wait_until(lambda: elastic.worlds()[-1] == "2", LIMIT_S), elastic.everything()
    place.user.write("train/elastic/enough", "")
    elastic.wait()
    assert elastic.state["outcome"] == "completed", elastic.everything()
    assert elastic.final() == reference(elastic.steps(), tmp_path)
    assert place.nothing_left()


def _look_into(place: LaunchPlace, started: Started) -> None:
    """Ask the ranks on both nodes from the node where a person types, through their sandboxes."""
    number = started.folder.name
    done = place.gipfel("stacks", number, "--ranks", "all")
    assert done.returncode == 0, done.stderr
    assert "2 ranks are stopped for a few milliseconds" in done.stderr
    assert "(signal)" in done.stdout
    assert "train.py:" in done.stdout
    assert "py-spy is not installed in the image" in done.stderr
    assert {path.stem for path in started.folder.glob("deeper/stacks-*/rank-*.txt")} == {"rank-0", "rank-1"}
    flame = place.gipfel("stacks", number, "--flame", "--seconds", "2", "--ranks", "node=node02")
    assert flame.returncode == 0, flame.stderr
    assert "flame graph: " in flame.stdout
    traced = place.gipfel("trace", number, "--steps", "2", "--json")
    assert traced.returncode == 0, traced.stderr
    assert {each["rank"] for each in json.loads(traced.stdout)["answers"]} == {0, 1}


def test_a_notebook_runs_on_the_nodes_that_pass_and_every_rank_is_traced(place: LaunchPlace) -> None:
    place.user.write("train/data/marker", "")
    data = f"{place.folder}/data"
    paths = f'[{{name: paths, type: mounts, parameters: {{paths: {{"{data}/marker": read}}}}}}]'
    place.user.write("train/vet.yaml", f"name: own\ntime_limit: 120 s\nchecks: {paths}\n")
    place.user.write("train/train.ipynb", _notebook())
    enter = ["nsenter", "-t", str(place.cluster.pid("node02")), "-m", "--"]
    place.cluster.call([*enter, "mount", "-t", "tmpfs", "tmpfs", data])
    try:
        how = ("--nodes", "1:2", "--gpus-per-node", "2", "--vet", "vet.yaml", "--profile")
        started = place.launched(*how, "-p", "steps", "9", "--", "train.ipynb").wait()
    finally:
        place.cluster.call([*enter, "umount", data])
    assert started.state["outcome"] == "completed", started.everything()
    assert started.state["nodes"] == ["node01"]
    executed = json.loads((started.folder / "notebook.ipynb").read_text())
    assert "DONE 9 of 2" in json.dumps(executed["cells"][-1]["outputs"])
    assert "DONE 9 of 2" in started.log(1)
    for rank in (0, 1):
        trace = json.loads((started.folder / f"profile/rank-{rank}.json").read_text())
        assert any("Optimizer.step" in each.get("name", "") for each in trace["traceEvents"])
    assert place.nothing_left()


REFUSED = [
    (("--edf", "none", "--", "reduce.py"), "there is no EDF of this name"),
    (("--edf", "torch", "--", "nowhere.py"), "does not exist inside the container"),
    (("--edf", "bare", "--", "reduce.py"), "FAILED image"),
    (
        ("--edf", "torch", "--nodes", "2:1", "--", "reduce.py"),
        "the smallest number of nodes is larger than the largest",
    ),
    (("--edf", "torch", "--env", "HF_TOKEN=x", "--", "reduce.py"), "looks like a secret"),
    (("--edf", "torch", "--in-job", "--", "reduce.py"), "not in a job whose GPUs"),
    (("--edf", "torch", "--checkpoint", "c", "--min-free", "1e9", "--", "reduce.py"), "GiB free"),
]  # fmt: skip


def _drained(place: LaunchPlace, how: tuple[str, ...], *words: str) -> Started:
    """Launch ranks whose checkpoints are copied from the memory of their nodes."""
    packages = place.folder / "packages"
    for package in (gipfel_cluster, gipfel_extension, gipfel_widgets):
        target = packages / package.__name__
        if not target.exists():
            shutil.copytree(package.__path__[0], target, ignore=shutil.ignore_patterns("static"))
            for each in (packages, target, *target.rglob("*")):
                place.user.own(each, 0o700 if each.is_dir() else 0o600)
    return place.launched(
        *how, "--no-preflight", "--env", f"PYTHONPATH={packages}", "--", "drained.py", *words
    )


def _undisturbed(steps: int) -> str:
    import torch  # noqa: PLC0415 - takes seconds

    weights = torch.arange(float(1 << 20)).reshape(1 << 10, 1 << 10)
    for step in range(1, steps + 1):
        weights.mul_(0.5).add_(step)
    return "FINAL " + hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def _whole(place: LaunchPlace, name: str) -> tuple[int, str]:
    """Return the step and the state of the newest checkpoint; nothing of it is left on the nodes."""
    directory = place.folder / name
    local = f"gipfel-{place.user.uid}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    nodes = [
        Path(f"/proc/{place.cluster.pid(node)}/root/dev/shm", local) for node in place.cluster.node_names
    ]
    assert any(each.is_dir() for each in nodes)
    assert not [step for each in nodes for step in each.glob("step-*")]
    newest = find_checkpoints(directory, verify=True)[-1]
    return newest.step or 0, newest.state


def test_checkpoints_of_two_nodes_survive_signal_and_kill_and_resume_on_four_two_and_four_ranks(
    place: LaunchPlace,
) -> None:
    both = ("--nodes", "2", "--checkpoint", "drained", "--on-preempt", "end", "--gpus-per-node")
    four = _drained(place, (*both, "2"), "steps=100000", "pause=0.3", "every=1000", "limit=2e6").until(2)
    # What the supervisor sends to every rank when the time limit is near; one rank suffices.
    os.kill(place.find(f"{four.folder}/run.py")[-1], signal.SIGUSR1)
    four.wait()
    assert four.logs.count("LEFT") == 4, four.everything()
    left = four.steps()
    assert _whole(place, "drained") == (left, "verified")
    # Copying 2 MiB of each rank takes four seconds more than the ranks have.
    words = f"steps={left + 40}", f"kill={left + 3}", f"every={left + 3}", "limit=5e5"
    two = _drained(place, (*both, "1"), *words).wait()
    assert f"START {left} world 2" in two.log(0), two.everything()
    assert two.state["outcome"] == "failed"
    # The job ended after the processes that copy.
    assert _whole(place, "drained") == (left + 3, "verified"), two.everything()
    again = _drained(place, (*both, "2"), f"steps={left + 6}", "every=1000").wait()
    assert again.state["outcome"] == "completed", again.everything()
    assert f"START {left + 3} world 4" in again.log(0)
    assert again.final() == _undisturbed(left + 6)
    assert place.nothing_left()


def test_it_goes_on_in_the_queue_and_what_would_fail_never_gets_there(
    place: LaunchPlace, tmp_path: Path
) -> None:
    # More seconds of steps than the job has: it comes to its end of time however fast the machine is.
    words = ("--time", "1", "--grace", "10", "--checkpoint", "time", "--no-preflight", "--gpus-per-node", "2")
    started = place.launched(*words, "--", "train.py", "steps=40", "pause=1")
    place.user.write(".edf/bare.toml", f'image = "{image_builder.images_folder()}/debian"\n')
    job = started.state["job_id"]
    for refused, said in REFUSED:
        done = place.gipfel("launch", *refused)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert [line.split()[0] for line in place.jobs().splitlines()] in ([job], [])
    assert wait_until(lambda: "LEFT" in started.logs, 120), started.everything()

    def ended() -> bool:
        # A slow machine needs several turns.
        if started.state["phase"] == "queued":
            place.cluster.start_soon(job)
        return bool(started.state["phase"] == "ended")

    assert wait_until(ended, 500), started.everything()
    assert started.state["outcome"] == "completed", started.everything()
    assert started.state["requeues"] >= 1
    assert "resume 1" in started.log(0)
    assert started.final() == reference(40, tmp_path)
    assert place.nothing_left()


def _notebook() -> str:
    """A notebook that trains on all ranks with as many steps as its parameter says."""
    parameters = {"source": "steps = 1", "metadata": {"tags": ["parameters"]}}
    training = {"source": _TRAINING, "metadata": {}}
    code: dict[str, object] = {"cell_type": "code", "outputs": [], "execution_count": None}
    cells = [{**code, **each, "id": f"cell-{number}"} for number, each in enumerate((parameters, training))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}
    )


_TRAINING = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
print("DONE", step + 1, "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""
