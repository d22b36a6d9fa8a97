"""Launches as jobs of their own: each launcher, broken ranks, elastic nodes, the end of time."""

from pathlib import Path

import images as image_builder
import pytest
from launches import LaunchPlace, reference
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError

pytestmark = pytest.mark.cluster

HOSTILE = (
    "--lr=0.1",
    "$(touch /tmp/pwned)",
    "a b",
    'it\'s "x"\n`id`',
    "-- ; rm -rf /",
    "{python}",
    "ü✓",
    "%j",
)


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
    started = place.launched(*how, "--", "reduce.py", *HOSTILE).wait()
    assert started.state["outcome"] == "completed", started.everything()
    told = sorted(started.told(), key=lambda each: each["rank"])
    assert [(each["rank"], each["world"], each["sum"]) for each in told] == [(n, 4, 10.0) for n in range(4)]
    assert {each["node"] for each in told} == set(place.cluster.node_names)
    assert all(tuple(each["words"]) == HOSTILE for each in told)
    assert {each["address"] for each in told} == {place.cluster.addresses[started.state["nodes"][0]]}
    assert {each["mine"] for each in told} == {"x y"}
    assert all(len(each["gpus"].split(",")) == 2 for each in told)
    if launcher != "srun":
        assert {tuple(each["leaked"]) for each in told} == {()}
    command = (started.folder / "command.txt").read_text()
    assert "srun --overlap --nodes=2" in command
    assert "reduce.py" in command
    assert not Path("/tmp/pwned").exists()
    shown = place.gipfel("launch", "logs", started.folder.name)
    assert shown.stdout.count("TOLD") == 4
    assert shown.stdout.startswith("r")
    assert place.nothing_left()


def test_a_killed_rank_is_started_again_and_the_weights_are_those_of_an_undisturbed_run(
    place: LaunchPlace, tmp_path: Path
) -> None:
    wanted = reference(12, tmp_path / "reference")
    for launcher in ("torchrun", "srun"):
        how = (
            "--launcher",
            launcher,
            "--nodes",
            "2",
            "--gpus-per-node",
            "2",
            "--restarts",
            "1",
            "--no-preflight",
        )
        words = ("--checkpoint", f"killed-{launcher}", "--", "train.py", "steps=12", "kill=3:5")
        started = place.launched(*how, *words).wait()
        assert started.state["outcome"] == "completed", started.everything()
        assert started.state["restarts"] == 1
        assert "START 5 world 4 resume 1" in started.log(0)
        assert started.final() == wanted
    assert place.nothing_left()


def test_the_first_failing_rank_is_named_with_its_traceback(place: LaunchPlace) -> None:
    how = ("--nodes", "2", "--gpus-per-node", "2", "--checkpoint", "failed", "--no-preflight", "--wait")
    done = place.gipfel("launch", "--edf", "torch", *how, "--", "train.py", "fail=2:3")
    assert done.returncode == 1, done.stderr
    assert "rank 2 on node02: ValueError: the loss went to the moon" in done.stderr
    assert "r2 | ValueError: the loss went to the moon" in done.stdout
    shown = place.gipfel("launch", "show")
    assert 'raise ValueError("the loss went to the moon")' in shown.stdout
    assert "run.py" not in shown.stdout
    assert place.nothing_left()


def test_a_node_leaves_an_elastic_launch_and_comes_back(place: LaunchPlace, tmp_path: Path) -> None:
    words = (
        "--nodes",
        "1:2",
        "--restarts",
        "3",
        "--checkpoint",
        "elastic",
        "--gather",
        "3",
        "--no-preflight",
    )
    started = place.launched(*words, "--", "train.py", "steps=240", "pause=0.5")
    started.until(3)
    leaving = next(node for node in started.state["nodes"] if node != started.state["nodes"][0])
    place.kill("torch.distributed.run", node=leaving)
    assert wait_until(lambda: "1" in started.worlds(), 120), started.everything()
    assert wait_until(lambda: started.worlds()[-1:] == ["2"] or started.log(0).count("world 2") > 1, 120), (
        started.everything()
    )
    started.wait(limit_s=300)
    assert started.state["outcome"] == "completed", started.everything()
    assert started.final() == reference(240, tmp_path / "reference")
    assert place.nothing_left()


def test_it_goes_on_in_the_queue_when_its_time_is_over(place: LaunchPlace, tmp_path: Path) -> None:
    words = ("--time", "1", "--grace", "10", "--checkpoint", "time", "--no-preflight", "--gpus-per-node", "2")
    started = place.launched(*words, "--", "train.py", "steps=30", "pause=1")
    assert wait_until(lambda: "LEFT" in started.logs, 120), started.everything()
    assert wait_until(lambda: "PENDING" in place.jobs(), 60), started.everything()
    job = place.jobs().split()[0]
    assert (started.state["phase"], started.state["requeues"]) == ("queued", 1)

    def ended() -> bool:
        # Slurm keeps a requeued job from starting for two minutes; a slow machine needs several turns.
        if "PENDING" in place.jobs():
            place.cluster.call(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        return bool(started.state["phase"] == "ended")

    assert wait_until(ended, 500), started.everything()
    assert started.state["outcome"] == "completed", started.everything()
    assert "resume 1" in started.log(0)
    assert started.final() == reference(30, tmp_path / "reference")
    assert place.nothing_left()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--edf", "none", "--", "reduce.py"), "there is no EDF of this name"),
        (("--edf", "torch", "--", "nowhere.py"), "is not there inside the container"),
        (("--edf", "bare", "--", "reduce.py"), "FAILED image"),
        (("--edf", "torch", "--nodes", "2:1", "--", "reduce.py"), "the fewest nodes are more than the most"),
        (("--edf", "torch", "--env", "HF_TOKEN=x", "--", "reduce.py"), "looks like a secret"),
        (("--edf", "torch", "--where", "here", "--", "reduce.py"), "no job whose GPUs"),
        (("--edf", "torch", "--checkpoint", "c", "--checkpoint-gib", "1e9", "--", "reduce.py"), "GiB free"),
    ],
)
def test_what_would_fail_is_said_before_anything_is_queued(
    place: LaunchPlace, words: tuple[str, ...], said: str
) -> None:
    place.user.write(".edf/bare.toml", f'image = "{image_builder.images_folder()}/debian"\n')
    done = place.gipfel("launch", *words)
    assert done.returncode == 1
    assert said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not place.jobs()
