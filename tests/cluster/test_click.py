"""A click becomes JupyterLab in a container on a node: as a plain user, by REST API and proxy."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from edf_files import write_edf
from hub_process import HubProcess
from hub_user import HubUser
from images import MARKER, MARKER_TEXT, Images
from kernel_client import Kernel
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

pytestmark = pytest.mark.cluster

_OPTIONS = {"edf": "click", "partition": "debug", "gpus": 2, "nodes": 1, "time": "00:20:00"}


@dataclass
class Session:
    """One user's running server."""

    unix: UnixUser
    hub_user: HubUser
    kernel: Kernel
    events: list[dict[str, object]]
    image_digest: str


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def session(hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images) -> Iterator[Session]:
    """A server in an image without Python, with two GPUs, two mounts and a variable."""
    unix = plain_users[0]
    unix.write("given/hello.txt", "from the host\n")
    unix.write("results/.keep", "")
    write_edf(
        unix,
        "click",
        image=images.debian,
        mounts=(f"{unix.home}/given:/data:ro", f"{unix.home}/results:/results"),
        env={"GREETING": "grüezi", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
        workdir="/results",
    )
    before = _digest(images.debian)
    user = hub.user(unix.name)
    events = user.start_server(_OPTIONS)
    with user.kernel() as kernel:
        yield Session(unix, user, kernel, events, before)
    user.stop_server()


def test_the_lab_answers_through_the_proxy(session: Session) -> None:
    page = session.hub_user.request("lab")
    assert page.status_code == 200
    assert "jupyter-config-data" in page.text


def test_the_start_was_told_step_by_step(session: Session, cluster: OneMachine) -> None:
    told = [str(event["message"]) for event in session.events]
    assert any(" is submitted." in message for message in told), told
    nodes = cluster.node_names
    assert any(f" on {node}" in message for message in told for node in nodes), told
    assert session.events[-1]["ready"] is True
    percents = [int(str(event["progress"])) for event in session.events]
    assert percents == sorted(percents)


def test_the_kernel_sees_the_images_files_and_no_others(session: Session) -> None:
    kernel = session.kernel
    assert kernel.value(f"open({MARKER!r}).read()") == MARKER_TEXT
    assert kernel.value("__import__('os').path.exists('/usr/bin/dpkg')")
    assert not kernel.value("__import__('glob').glob('/usr/bin/python*')")
    for hidden in ("/work", "/etc/munge", "/etc/slurm", str(session.unix.home / "given")):
        assert not kernel.value(f"__import__('os').path.exists({hidden!r})"), hidden
    assert kernel.value("open('/etc/os-release').read()").startswith('PRETTY_NAME="Debian')


def test_the_server_brings_its_own_interpreter(session: Session, runtime: Path) -> None:
    executable = session.kernel.value("__import__('sys').executable")
    assert executable.startswith(f"{runtime}/")
    tried = session.kernel.run(f"open({str(runtime)!r} + '/runtime.json', 'a')")
    assert "Error" in tried.error


def test_the_kernel_sees_the_edfs_mounts(session: Session) -> None:
    kernel = session.kernel
    assert kernel.value("open('/data/hello.txt').read()") == "from the host\n"
    assert "Read-only file system" in kernel.run("open('/data/new.txt', 'w')").error
    assert kernel.run("open('/results/new.txt', 'w').write('made inside\\n')").error == ""
    made = session.unix.home / "results" / "new.txt"
    assert made.read_text() == "made inside\n"
    assert made.stat().st_uid == session.unix.uid
    assert kernel.value("__import__('os').getcwd()") == "/results"


def test_the_kernel_sees_the_edfs_environment_and_its_own_gpus_only(session: Session) -> None:
    kernel = session.kernel
    environment = kernel.value("dict(__import__('os').environ)")
    assert environment["GREETING"] == "grüezi"
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment["USER"] == session.unix.name
    assert environment["HOME"] == str(session.unix.home)
    assert "SLURM_JOB_ID" in environment
    # Of secrets only the server's own token, under both of its names, and not the hub's.
    secret = {name for name in environment if "TOKEN" in name or "PASSWORD" in name}
    assert secret <= {"JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN"}


def test_it_runs_on_a_node_as_the_user(session: Session, cluster: OneMachine) -> None:
    assert session.kernel.value("__import__('socket').gethostname()") in cluster.node_names
    assert session.kernel.value("__import__('os').getuid()") == session.unix.uid
    assert session.kernel.value("__import__('subprocess').getoutput('id -un')") == session.unix.name
    job = cluster.call(
        ["squeue", "--noheader", f"--user={session.unix.name}", "--format=%P %D %l %b"]
    ).split()
    assert job[:3] == ["debug", "1", "20:00"]
    assert job[3].endswith("gpu:2")


def test_the_root_file_system_is_writable_and_the_image_untouched(session: Session, images: Images) -> None:
    kernel = session.kernel
    assert (
        kernel.run(
            "open('/usr/local/bin/mine', 'w').write('x'); open('/opt/marker.txt', 'a').write('y')"
        ).error
        == ""
    )
    assert kernel.value("open('/opt/marker.txt').read()") == f"{MARKER_TEXT}y"
    assert _digest(images.debian) == session.image_digest


def test_the_record_says_what_this_run_is(session: Session, cluster: OneMachine) -> None:
    run = Path(session.kernel.value("__import__('os').environ['GIPFEL_RUN']"))
    assert run.parent == session.unix.home / ".gipfel" / "runs"
    assert run.stat().st_mode & 0o777 == 0o700
    record = json.loads((run / "record.json").read_text())
    assert record["options"]["edf"] == "click"
    assert record["options"]["gpus"] == 2
    assert record["edf"]["env"]["GREETING"] == "grüezi"
    assert record["edf_digest"].startswith("sha256:")
    assert record["image"]["size"] > 0
    assert set(record["nodes"]) <= set(cluster.node_names)
    assert record["versions"]["gipfel"]
    assert record["command"]


def test_the_images_digest_is_computed_beside_the_job(session: Session) -> None:
    run = Path(session.kernel.value("__import__('os').environ['GIPFEL_RUN']"))

    def digest() -> str | None:
        found: str | None = json.loads((run / "record.json").read_text())["image"]["digest"]
        return found

    assert wait_until(lambda: digest() is not None, 60)
    assert digest() == f"sha256:{session.image_digest}"


def test_doctor_in_the_container_and_in_a_job_without_one(
    session: Session, cluster: OneMachine, runtime: Path
) -> None:
    asked = "import subprocess; done = subprocess.run(['gipfel', 'doctor', '--json'], capture_output=True)"
    assert not session.kernel.run(asked).error
    status, inside = session.kernel.value("[done.returncode, json.loads(done.stdout)]")
    found = {each["name"]: each for each in inside["findings"]}
    job = session.kernel.value("__import__('os').environ['SLURM_JOB_ID']")
    assert found["this job"]["message"].startswith(f"{job} on ")
    assert found["this job"]["message"].endswith(", in the container of click, started by bubblewrap.")
    through = found["jobs from here"]
    assert (through["status"], "Slurm answers: partitions " in through["message"]) == ("ok", True)
    assert "4 nodes and 16 GPUs, counted by partition" in through["message"]
    # The cluster's GPUs are GPUs in name: two were requested, and no driver is here.
    missing = [name for name, each in found.items() if each["status"] == "missing"]
    assert (status, inside["ok"], missing) == (1, False, ["NVIDIA (NVML)"])
    assert "This job requested 2 GPUs" in found["NVIDIA (NVML)"]["message"]
    home = found["home"]
    assert (home["status"], "deleted when the job ends" in home["message"]) == ("warning", True)
    assert found["run folders"]["message"].startswith(f"{session.unix.home}/.gipfel/runs/")
    assert found["hub"]["status"] == "ok"

    settings = [f"{name}={value}" for name, value in cluster.environment.items()]
    asked_plain = ("srun", "--partition=debug", "--quiet", f"{runtime}/bin/gipfel", "doctor", "--json")
    plain = session.unix.run("env", *settings, f"HOME={session.unix.home}", *asked_plain, limit_s=60)
    document = json.loads(plain.stdout)
    found = {each["name"]: each for each in document["findings"]}
    assert found["this job"]["message"].endswith(", not started by Gipfel."), plain.stderr
    assert found["Slurm"]["status"] == "ok"
    assert found["engine bubblewrap"]["status"] == found["runtime"]["status"] == "ok"
    assert (plain.returncode, document["ok"]) == (0, True)


def test_no_token_is_in_an_argument_a_log_or_a_file(session: Session, hub: HubProcess) -> None:
    token = session.kernel.value("__import__('os').environ['JUPYTERHUB_API_TOKEN']").encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert token not in (entry / "cmdline").read_bytes(), entry
            except OSError:
                continue
    assert token not in hub.log.read_bytes()
    for parent, _, names in os.walk(session.unix.home):
        for name in names:
            path = Path(parent) / name
            if path.is_file():
                assert token not in path.read_bytes(), path


def test_samples_of_the_job_reach_the_page(session: Session) -> None:
    user = session.hub_user
    described = user.request("gipfel/run").raise_for_status().json()
    assert described["edf"]["name"] == "click"
    assert described["node"].startswith("node0")
    stream = user.websocket("gipfel/saturation/stream?window=600")
    try:
        first = json.loads(stream.recv())
        assert first["type"] == "figures"
        assert not first["status"]["simulated"]
        for _ in range(20):
            message = json.loads(stream.recv())
            if message["type"] == "samples" and message.get("traces"):
                break
        assert any("CPU" in uid for uid in message["traces"])
    finally:
        stream.close()


def test_segments_are_written_while_it_runs(session: Session) -> None:
    run = Path(session.kernel.value("__import__('os').environ['GIPFEL_RUN']"))
    assert wait_until(lambda: any(path.stat().st_size > 1000 for path in run.glob("telemetry/*.arrows")), 20)


@pytest.mark.parametrize("kind", ["python", "unpacked", "host"])
def test_other_images_and_none_start_too(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images, runtime: Path, kind: str
) -> None:
    unix = plain_users[1]
    image: dict[str, Path | str] = {"python": images.python, "unpacked": images.unpacked, "host": ""}
    write_edf(unix, kind, image=image[kind], env={"KIND": kind})
    user = hub.user(unix.name)
    user.start_server({"edf": kind})
    try:
        with user.kernel() as kernel:
            assert kernel.value("__import__('os').environ['KIND']") == kind
            assert kernel.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == ""
            own = "/usr" if kind == "python" else str(runtime)
            assert kernel.value("__import__('sys').prefix") == own
            assert kernel.value("__import__('os').path.exists('/usr/bin/python3')") == (kind != "unpacked")
            assert kernel.value(f"__import__('os').path.exists({MARKER!r})") == (kind != "host")
            assert kernel.value("__import__('os').path.exists('/usr/sbin/slurmd')") == (kind == "host")
    finally:
        user.stop_server()
