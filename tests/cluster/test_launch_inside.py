"""Launches in a job that runs JupyterLab: side by side, stopped, outliving kernel, server, controller."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import images as image_builder
import pytest
import websocket
from kernel_client import Kernel
from launches import HOSTILE, LIMIT_S, LaunchPlace, Started, reference
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON, GipfelError
from gipfel_extension.training.record.spec import LaunchSpec

pytestmark = pytest.mark.cluster

_PORT, _TOKEN = 8899, "of-the-tests"
_LAUNCH = """
from pathlib import Path
from gipfel_extension.training.launch import launch
from gipfel_extension.training.record.spec import LaunchSpec
print(launch(LaunchSpec.model_validate_json({spec!r}), directory=Path({folder!r})).folder)
"""
_CELL = """
import json, os
print("CELL " + json.dumps([words, os.environ["WORLD_SIZE"]]))
print("LEAKED", [name for name in os.environ if "TOKEN" in name])
"""


_STAGE = """
import subprocess, sys
words = ["data", "stage", {data!r}, "--to", "memory", "--json"]
done = subprocess.run([sys.executable, "-m", "gipfel_extension.cli", *words], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
print(done.stdout.strip())
"""


class Server:
    """A job of two nodes with JupyterLab, one of whose kernels starts the requested launches."""

    def __init__(self, place: LaunchPlace) -> None:
        self.place = place
        node = place.cluster.node_names[0]
        address = place.cluster.addresses[node]
        options = [f"--ServerApp.ip={address}", f"--ServerApp.port={_PORT}", "--no-browser"]
        options += [f"--IdentityProvider.token={_TOKEN}", f"--ServerApp.root_dir={place.folder}"]
        spec = JobSpec(
            kind="server",
            command=(PYTHON, "-m", "jupyterlab", *options),
            cluster="tests",
            edf="torch",
            runtime=str(place.runtime),
            sources=("host",),
        )
        script = place.user.write("train/job.sh", batch_script(f"{place.runtime}/bin/python3"), 0o700)
        secret = {"JUPYTERHUB_API_TOKEN": "hush", "MY_TOKEN": "hush"}
        settings = {**place.environment(), **secret, JOB_VARIABLE: spec.model_dump_json()}
        argv = ["env", "-i", f"--chdir={place.folder}", *(f"{k}={v}" for k, v in settings.items())]
        argv += ["sbatch", "--parsable", "-N2", f"--nodelist={','.join(place.cluster.node_names)}"]
        argv += ["--gres=gpu:4", "--cpus-per-task=8", str(script)]
        done = place.user.run(*argv)
        self.job = done.stdout.strip()
        assert self.job.isdecimal(), done.stderr
        self._address, self._at = address, f"{address}:{_PORT}"
        self._client = httpx.Client(
            base_url=f"http://{self._at}", headers={"Authorization": f"token {_TOKEN}"}, trust_env=False
        )
        assert wait_until(self._answers, LIMIT_S), (place.folder / f"slurm-{self.job}.out").read_text()
        self.kernel = self._kernel()

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/api/status").status_code == 200
        return False

    def _kernel(self) -> Kernel:
        answer = self._client.post("/api/kernels", json={"name": "python3"}, timeout=LIMIT_S)
        answer.raise_for_status()
        header = [f"Authorization: token {_TOKEN}"]
        path = f"ws://{self._at}/api/kernels/{answer.json()['id']}/channels"
        return Kernel(
            websocket.create_connection(path, header=header, timeout=60, http_no_proxy=[self._address])
        )

    def ask(self, **spec: object) -> tuple[str, str]:
        """Have the kernel launch something: the folder, or the error."""
        request = LaunchSpec.model_validate({"target": "train.py", **spec})
        code = _LAUNCH.format(spec=request.model_dump_json(), folder=str(self.place.folder))
        done = self.kernel.run(code, LIMIT_S)
        return done.text.strip(), done.error

    def launch(self, **spec: object) -> Started:
        """The same, of what can be launched."""
        folder, error = self.ask(**spec)
        assert not error, error
        return Started(Path(folder.splitlines()[-1]))

    def close(self) -> None:
        """End the job."""
        self.kernel.__exit__(None, None, None)
        self._client.close()
        self.place.cluster.call(["scancel", self.job])


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
    server.close()
    assert place.nothing_left()


def test_launches_share_a_job_and_outlive_kernel_server_and_controller(
    server: Server, tmp_path: Path
) -> None:
    place = server.place
    endless = {"preflight": False, "gpus_per_node": 1}
    one = server.launch(
        nodes=2, arguments=("steps=100000", "pause=0.3"), checkpoint="first", gpus_per_node=1, name="first"
    )
    two = server.launch(
        nodes=2,
        arguments=("steps=100002", "pause=0.3"),
        checkpoint="second",
        gpus_per_node=1,
        launcher="srun",
        preflight=False,
    )
    cell = server.launch(
        kind="cell", target="", code=_CELL, parameters={"words": list(HOSTILE)}, preflight=False
    )
    one.until(2)
    two.until(2)
    states = one.state, two.state
    assert states[0]["endpoint"] != states[1]["endpoint"]
    for node in place.cluster.node_names:
        assert not set(states[0]["gpus"][node]) & set(states[1]["gpus"][node])
    _check_cell(cell.wait())
    place.user.write(".edf/odd.toml", (place.user.home / ".edf/torch.toml").read_text() + "[oddity]\n")
    _, refused = server.ask(nodes=2, gpus_per_node=3, checkpoint="third", edf="odd")
    assert "2 of the job's 4 are free" in refused, refused
    assert "#1 first" in refused
    # The host's EDF was checked on the host, though the kernel is in a container.
    (edf,) = [each for each in _outcomes(one.folder.with_name("4")) if each["check"] == "edf"]
    assert edf["verdict"] == "warn", edf
    assert "odd.toml" in edf["message"]
    assert "oddity" in edf["message"]
    _check_staging(server)
    # Stopping ends one launch, and nothing else.
    done = place.gipfel("launch", "stop", str(two.folder))
    assert done.returncode == 0, done.stderr
    assert two.state["outcome"] == "stopped"
    assert not place.find(f"{two.folder}/")
    assert place.find(f"{one.folder}/")
    assert one.state["phase"] == "running"
    # A step's srun, and a supervisor, are killed: their launches end with all that they started.
    three = server.launch(arguments=("steps=100003", "pause=0.3"), checkpoint="3", launcher="srun", **endless)
    four = server.launch(arguments=("steps=100004", "pause=0.3"), checkpoint="4", **endless)
    three.until(2)
    four.until(2)
    place.kill("srun", "--overlap", str(three.folder))
    place.kill("training.launches", str(four.folder))
    # The kernel is killed, and Slurm's controller is killed and started again.
    before = one.steps()
    place.kill("kernel_launch")
    one.until(before + 3)
    place.cluster.restart_controller()
    one.until(one.steps() + 3)
    three.wait()
    assert three.state["outcome"] == "failed", three.everything()
    assert wait_until(lambda: not place.find(f"{three.folder}/"), 120), three.everything()
    assert wait_until(lambda: not place.find(f"{four.folder}/"), 120), four.everything()
    assert wait_until(lambda: _shown(place, four)["outcome"] == "lost", 120), four.everything()
    assert four.state["phase"] == "ended"
    assert one.state["phase"] == "running"
    # The server is killed: the job stays until the launch has ended, and not longer.
    place.kill("jupyterlab")
    one.until(one.steps() + 3)
    assert server.job in place.jobs()
    place.user.write("train/first/enough", "")
    one.wait()
    assert one.state["outcome"] == "completed", one.everything()
    assert one.final() == reference(one.steps(), tmp_path)
    assert wait_until(lambda: server.job not in place.jobs(), 60)
    assert place.nothing_left()
    assert one.state["ended_ns"] < time.time_ns()


def _outcomes(folder: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((folder / "preflight.json").read_text())
    return found


def _check_cell(cell: Started) -> None:
    assert cell.state["outcome"] == "completed", cell.everything()
    outputs = json.loads((cell.folder / "notebook.ipynb").read_text())["cells"][-1]["outputs"]
    lines = "".join("".join(each["text"]) for each in outputs).splitlines()
    assert json.loads(lines[0].removeprefix("CELL ")) == [list(HOSTILE), "1"]
    assert lines[1] == "LEAKED []"
    for path in cell.folder.rglob("*"):
        assert not path.is_file() or b"hush" not in path.read_bytes(), path


def _check_staging(server: Server) -> None:
    """Data is staged on both nodes from within the container, by a supervisor on the host."""
    data = server.place.folder / "train.py"
    code = _STAGE.format(data=str(data))
    done = server.kernel.run(code, LIMIT_S)
    assert not done.error, done.error
    found = json.loads(done.text.strip().splitlines()[-1])
    assert [each["phase"] for each in found["copies"]] == ["staged", "staged"], found
    assert found["shared_reads"] == data.stat().st_size
    assert f"-{server.job}/transfers/1" in found["folder"]


def _shown(place: LaunchPlace, started: Started) -> dict[str, object]:
    done = place.gipfel("launch", "show", "--json", str(started.folder))
    content: dict[str, object] = json.loads(done.stdout)
    return content
