"""Launches in a job that runs a server: side by side, stopped, outliving kernel, server, controller."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import images as image_builder
import pytest
from launches import LIMIT_S, LaunchPlace, Started, reference
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.job.spec import PYTHON
from gipfel_cluster.model import GipfelError
from gipfel_extension.training.spec import LaunchSpec

pytestmark = pytest.mark.cluster


class Server:
    """A job of two nodes whose server launches what it is asked for."""

    def __init__(self, place: LaunchPlace) -> None:
        self.place = place
        self._requests = place.folder / "requests"
        place.user.write("train/requests/.keep", "")
        self._count = 0
        spec = JobSpec(
            kind="server",
            command=(PYTHON, "-I", str(place.folder / "server.py"), str(self._requests)),
            cluster="tests",
            edf="torch",
            runtime=str(place.runtime),
            sources=("host",),
        )
        script = place.user.write("train/job.sh", batch_script(f"{place.runtime}/bin/python3"), 0o700)
        settings = {**place.environment(), JOB_VARIABLE: spec.model_dump_json()}
        argv = ["env", "-i", f"--chdir={place.folder}", *(f"{k}={v}" for k, v in settings.items())]
        argv += ["sbatch", "--parsable", "-N2", "--gres=gpu:4", "--cpus-per-task=8", str(script)]
        done = place.user.run(*argv)
        self.job = done.stdout.strip()
        assert self.job.isdecimal(), done.stderr
        assert wait_until(lambda: bool(place.find("server.py")), 120)

    def ask(self, **spec: object) -> dict[str, str]:
        """Have a kernel launch something."""
        self._count += 1
        request = LaunchSpec.model_validate({"target": "train.py", "edf": "", **spec})
        self.place.user.write(f"train/requests/{self._count}.request", request.model_dump_json())
        answer = self._requests / f"{self._count}.answer"
        assert wait_until(answer.exists, LIMIT_S)
        content: dict[str, str] = json.loads(answer.read_text())
        return content

    def launch(self, **spec: object) -> Started:
        """The same, of what can be launched."""
        answer = self.ask(**spec)
        assert "folder" in answer, answer
        return Started(Path(answer["folder"]))


@pytest.fixture
def server(
    cluster: OneMachine, runtime: Path, plain_users: tuple[UnixUser, UnixUser], fuse: None
) -> Iterator[Server]:
    try:
        image = image_builder.torch_image()
    except GipfelError as error:
        pytest.skip(str(error))
    place = LaunchPlace.prepare(plain_users[1], cluster, runtime, image)
    server = Server(place)
    yield server
    place.cluster.call(["scancel", server.job])
    assert place.nothing_left()


def test_launches_share_a_job_and_outlive_kernel_server_and_controller(
    server: Server, tmp_path: Path
) -> None:
    place = server.place
    one = server.launch(
        nodes=2, arguments=("steps=200", "pause=0.5"), checkpoint="first", gpus_per_node=1, name="first"
    )
    two = server.launch(
        nodes=2,
        arguments=("steps=100000", "pause=0.2"),
        checkpoint="second",
        gpus_per_node=2,
        launcher="srun",
        preflight=False,
    )
    one.until(2)
    two.until(2)
    states = one.state, two.state
    assert states[0]["endpoint"] != states[1]["endpoint"]
    for node in place.cluster.node_names:
        assert not set(states[0]["gpus"][node]) & set(states[1]["gpus"][node])
    refused = server.ask(nodes=2, gpus_per_node=2, checkpoint="third")
    assert "1 are free" in refused["problem"] or "1 of" in refused["problem"], refused
    assert "#1 first" in refused["problem"]
    # The kernel is killed.
    before = one.steps()
    place.kill("launch(LaunchSpec")
    one.until(before + 3)
    # Slurm's controller is killed and started again in the middle.
    place.cluster.restart_controller()
    one.until(one.steps() + 3)
    assert one.state["phase"] == two.state["phase"] == "running"
    # Stopping ends one launch, and nothing else.
    done = place.gipfel("launch", "stop", str(two.folder))
    assert done.returncode == 0, done.stderr
    assert two.state["outcome"] == "stopped"
    assert not place.find("steps=100000")
    assert one.state["phase"] == "running"
    # The server is killed: the job stays until the launch has ended, and not longer.
    place.kill("server.py")
    one.until(one.steps() + 3)
    assert server.job in place.jobs()
    one.wait()
    assert one.state["outcome"] == "completed", one.everything()
    assert one.final() == reference(200, tmp_path / "reference")
    assert wait_until(lambda: server.job not in place.jobs(), 60)
    assert place.nothing_left()
    assert one.state["ended_ns"] < time.time_ns()
