"""A notebook as a Slurm job: as a plain user, on a node, inside an image without Python."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from edf_files import write_edf
from images import Images
from notebook_files import printed, write_notebook
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_extension.network import read_gate
from gipfel_extension.training.papermill.progress import Progress, read_progress

pytestmark = pytest.mark.cluster

_LIMIT_S = 150
_SHIPPED = Path(__file__).resolve().parents[2] / "notebooks" / "measure-saturation.ipynb"
Gipfel = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def user(plain_users: tuple[UnixUser, UnixUser]) -> UnixUser:
    return plain_users[0]


@pytest.fixture
def gipfel(cluster: OneMachine, runtime: Path, user: UnixUser, fuse: None) -> Gipfel:
    """The command of the runtime, typed by the user in a folder of the home folder."""

    def call(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        variables = {**cluster.environment, "GIPFEL_CLUSTER": "tests", "PATH": "/usr/bin:/bin", **more}
        settings = [f"{name}={value}" for name, value in variables.items()]
        work = user.home / "batch"
        argv = ["env", f"--chdir={work}", *settings, f"{runtime}/bin/gipfel", *words]
        return user.run(*argv, limit_s=_LIMIT_S)

    user.write("batch/.keep", "")
    return call


def _given(user: UnixUser, name: str = "in.ipynb", **options: Any) -> Path:
    path = write_notebook(user.home / "batch" / name, **options)
    return user.own(path)


def _edf(user: UnixUser, images: Images, name: str = "batch") -> None:
    write_edf(user, name, image=images.debian, env={"GREETING": "grüezi"})


def test_a_notebook_runs_in_an_image_without_python(
    gipfel: Gipfel, user: UnixUser, images: Images, cluster: OneMachine, runtime: Path
) -> None:
    body = """\
import glob, os, socket, sys
print(text.encode().hex())
print(os.path.exists("/opt/marker.txt"), glob.glob("/usr/bin/python3*"), os.environ["GREETING"])
print(os.environ["CUDA_VISIBLE_DEVICES"], os.getcwd(), os.getuid(), socket.gethostname(), sys.prefix)
try:
    socket.create_connection(("203.0.113.7", 5000), 5)
except OSError as error:
    print(type(error).__name__)"""
    _given(user, body=body)
    _edf(user, images)
    value = 'it\'s "$(id)"\n`x` {python} ü✓'
    done = gipfel(
        *("submit", "in.ipynb", "out.ipynb", "-p", "text", value),
        *("--edf", "batch", "--gpus-per-node", "2", "--partition", "debug", "--time", "5", "--wait"),
        "--no-network",
    )
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert job_id.isdecimal()
    out = user.home / "batch" / "out.ipynb"
    assert out.stat().st_uid == user.uid
    carried, image, place, refused = printed(out)
    assert carried == value.encode().hex()
    assert image == "True [] grüezi"
    gpus, folder, uid, node, prefix = place.split()
    assert (gpus, folder, uid, prefix) == ("0,1", str(user.home / "batch"), str(user.uid), str(runtime))
    assert node in cluster.node_names
    lines = done.stderr.splitlines()
    assert all(line.startswith("gipfel: ") for line in lines)
    assert len(lines) == len(set(lines))
    run = user.home / ".gipfel" / "runs" / f"tests-{job_id}"
    record = json.loads((run / "record.json").read_text())
    assert (record["kind"], record["exit_status"], record["edf"]["name"]) == ("notebook", 0, "batch")
    ((name, text),) = record["options"]["parameters"]
    assert (name, yaml.safe_load(text)) == ("text", value)
    assert list(run.glob("telemetry/*.closed.*"))
    # The notebook's kernel is behind a gate, and talks with papermill there.
    assert refused == "ConnectionRefusedError"
    (row,) = (row for row in read_gate(run).rows if row.port == 5000)
    assert (row.name, row.allowed) == ("203.0.113.7", False)


def test_a_failing_notebook_gives_the_jobs_status_and_its_last_words(
    gipfel: Gipfel, user: UnixUser, images: Images
) -> None:
    _given(user)
    _edf(user, images)
    done = gipfel("submit", "in.ipynb", "failed.ipynb", "-p", "fail", "True", "--edf", "batch", "--wait")
    assert done.returncode == 1
    assert "AssertionError: as told" in done.stderr
    assert "FAILED" in done.stderr


def test_without_wait_the_job_goes_on_alone(
    gipfel: Gipfel, user: UnixUser, images: Images, cluster: OneMachine
) -> None:
    _given(user)
    _edf(user, images)
    done = gipfel("submit", "in.ipynb", "later.ipynb", "-p", "seconds", "120", "--edf", "batch")
    job_id = done.stdout.strip()
    assert done.returncode == 0
    assert "its log is" in done.stderr

    def state() -> str:
        return cluster.call(
            ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"]
        ).strip()

    assert wait_until(lambda: state() == "RUNNING", 30)
    user.run("env", *(f"{k}={v}" for k, v in cluster.environment.items()), "scancel", job_id)
    assert wait_until(lambda: state() == "CANCELLED", 40)
    assert wait_until(lambda: not user.processes(), 20)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.ipynb", "x.ipynb"), "does not exist"),
        (("none.ipynb", "x.ipynb"), "is not a notebook"),
        (("closed.ipynb", "x.ipynb"), "can't be read: Permission denied"),
        (("in.ipynb", "/etc/x.ipynb"), "can't be written to"),
        (("in.ipynb", "x.ipynb", "-p", "secnds", "1"), "Did you mean 'seconds'?"),
        (("in.ipynb", "x.ipynb", "--edf", "wrong"), "/nowhere/image.sqsh"),
        (("in.ipynb", "x.ipynb", "--nodes", "2", "--scheduler", "local"), "is one node"),
        (("in.ipynb", "x.ipynb", "--partition", "nowhere"), "Pick another partition"),
        (("in.ipynb", "x.ipynb", "--gpus-per-node", "64"), "Slurm refused"),
    ],
)
def test_a_mistake_is_one_line_and_no_job(
    gipfel: Gipfel, user: UnixUser, cluster: OneMachine, words: tuple[str, ...], said: str
) -> None:
    _given(user)
    user.write("batch/none.ipynb", "this is no notebook\n")
    closed = user.write("batch/closed.ipynb", "{}")
    os.chown(closed, 0, -1)
    write_edf(user, "wrong", image="/nowhere/image.sqsh")
    done = gipfel("submit", *words)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("gipfel: ")
    assert said in done.stderr
    assert done.stdout == ""
    assert not list((user.home / "batch").glob("x.*"))
    assert cluster.call(["squeue", "--noheader", f"--user={user.name}"]).strip() == ""


def test_a_slurm_that_does_not_answer_is_said_in_one_line(gipfel: Gipfel, user: UnixUser) -> None:
    _given(user)
    conf = user.write("slurm.conf", "ClusterName=gone\nSlurmctldHost=gone(127.0.0.1)\nSlurmctldPort=1\n")
    done = gipfel("submit", "in.ipynb", "x.ipynb", SLURM_CONF=str(conf))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "gipfel: Slurm" in done.stderr


@pytest.mark.skipif(not _SHIPPED.exists(), reason="The notebook is not there.")
def test_the_shipped_notebook_carries_its_plots(gipfel: Gipfel, user: UnixUser, images: Images) -> None:
    user.write("batch/measure-saturation.ipynb", _SHIPPED.read_text())
    _edf(user, images)
    parameters = ("-p", "source", "synthetic:training", "-p", "seconds", "4")
    done = gipfel(
        "submit", "measure-saturation.ipynb", "measured.ipynb", *parameters, "--edf", "batch", "--wait"
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((user.home / "batch" / "measured.ipynb").read_text())["cells"]
    kinds = {kind for cell in cells for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    assert {"application/vnd.plotly.v1+json", "image/png"} <= kinds


def test_a_requeued_job_goes_on_where_it_stopped(
    gipfel: Gipfel, user: UnixUser, images: Images, cluster: OneMachine
) -> None:
    body = "open('runs', 'a').write('x')\nprint('once')"
    node = write_notebook(user.home / "batch" / "long.ipynb", body=body)
    content = json.loads(node.read_text())
    wait = "import os, time\nprint('began', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.1)"
    content["cells"][2]["source"] = wait
    node.write_text(json.dumps(content))
    user.own(node)
    _edf(user, images)
    done = gipfel("submit", "long.ipynb", "long-out.ipynb", "-p", "text", "same", "--edf", "batch")
    job_id = done.stdout.strip()
    assert job_id.isdecimal(), done.stderr
    out = user.home / "batch" / "long-out.ipynb"

    def progress() -> Progress:
        return read_progress(out) or Progress()

    assert wait_until(lambda: progress().current == 4, 90)
    cluster.call(["scontrol", "requeue", job_id])
    assert wait_until(lambda: progress().state == "interrupted", 60)

    def goes_on() -> bool:
        cluster.start_soon(job_id)
        return progress().state == "running" and progress().kept == 1

    assert wait_until(goes_on, 200)
    user.write("batch/go", "")
    assert wait_until(lambda: progress().state == "completed", 90)
    assert (user.home / "batch" / "runs").read_text() == "x"
    assert printed(out) == ["once", "began"]


def test_a_grid_is_an_array_on_two_nodes(
    gipfel: Gipfel, user: UnixUser, images: Images, cluster: OneMachine
) -> None:
    body = """\
import os, pathlib, socket, time
mine = pathlib.Path(f"here-{seconds}")
mine.touch()
while len(list(pathlib.Path.cwd().glob("here-*"))) < 2:
    time.sleep(0.1)
print(socket.gethostname(), text, seconds, os.environ["SLURM_ARRAY_TASK_ID"])
assert seconds != 3, "the third point"
"""
    _given(user, body=body)
    _edf(user, images)
    done = gipfel(
        *("submit", "in.ipynb", "grid-{seconds}.ipynb", "-p", "text", "all", "--grid", "seconds=1..3"),
        # A node's four GPUs each: the points can't share one.
        *("--max-parallel", "2", "--gpus-per-node", "4", "--edf", "batch", "--wait"),
    )
    assert done.returncode == 1, done.stderr
    job_id = done.stdout.strip()
    said = [printed(user.home / "batch" / f"grid-{point}.ipynb")[0].split() for point in (1, 2, 3)]
    assert [(text, point, task) for _, text, point, task in said] == [
        ("all", "1", "0"), ("all", "2", "1"), ("all", "3", "2"),
    ]  # fmt: skip
    assert {node for node, *_ in said} == set(cluster.node_names)
    assert f"job {job_id}_0 has run the notebook" in done.stderr
    assert f"job {job_id}_2 ended: FAILED" in done.stderr
    assert "AssertionError: the third point" in done.stderr
    runs = {path.name for path in (user.home / ".gipfel" / "runs").glob(f"tests-{job_id}_*")}
    assert runs == {f"tests-{job_id}_{task}" for task in range(3)}
