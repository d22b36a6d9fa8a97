"""Two users on the same node at the same time: neither can access the other's data."""

import asyncio
import base64
import os
import pickle
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websocket
from edf_files import write_edf
from hub_process import HubProcess
from hub_user import HubUser
from images import Images, torch_image
from launches import LaunchPlace
from one_machine import OneMachine, wait_until
from unix_users import UnixUser

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.slurm import SlurmScheduler

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def both(
    hub: HubProcess, plain_users: tuple[UnixUser, UnixUser], images: Images
) -> Iterator[tuple[HubUser, HubUser]]:
    """Two servers that run at once; each user's EDF tries to mount the other's home folder's parent."""
    users = []
    for unix in plain_users:
        unix.write("secret.txt", f"secret of {unix.name}\n")
        write_edf(unix, "both", image=images.debian, mounts=(f"{unix.home.parent}:{unix.home.parent}",))
        user = hub.user(unix.name)
        assert user.request_server({"edf": "both", "gpus": 1}).status_code in {201, 202}
        users.append(user)
    for user in users:
        assert user.progress()[-1].get("ready")
    yield users[0], users[1]
    for user in users:
        user.stop_server()


_PATHS = [
    "lab",
    "api/contents",
    "api/kernels",
    "api/status",
    "gipfel/run",
    "gipfel/saturation",
    "gipfel/notebooks",
]


@pytest.mark.parametrize("path", _PATHS)
def test_a_users_server_answers_its_user_only(both: tuple[HubUser, HubUser], path: str) -> None:
    first, second = both
    assert first.request(path).status_code == 200
    for asked, asking in ((first, second), (second, first)):
        assert asking.request(path, owner=asked.name).status_code in {302, 403, 404}


@pytest.mark.parametrize("token", ["theirs", "none"])
def test_a_users_stream_is_refused_to_others(both: tuple[HubUser, HubUser], token: str) -> None:
    first, second = both
    first.websocket("gipfel/saturation/stream").close()
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        second.websocket(
            "gipfel/saturation/stream", owner=first.name, token=second.token if token == "theirs" else ""
        )
    assert refused.value.status_code in {302, 403}


def test_a_kernels_channels_are_refused_to_others(both: tuple[HubUser, HubUser]) -> None:
    first, second = both
    kernel = first.request("api/kernels", method="POST", json={"name": "python3"}).json()["id"]
    with pytest.raises(websocket.WebSocketBadStatusException):
        second.websocket(f"api/kernels/{kernel}/channels", owner=first.name)


def test_the_hub_lets_nobody_act_on_anothers_server(both: tuple[HubUser, HubUser]) -> None:
    first, second = both
    for path in (f"/users/{first.name}", f"/users/{first.name}/server/progress"):
        answer = httpx.get(
            f"{first.url}/hub/api{path}", headers={"Authorization": f"token {second.token}"}, trust_env=False
        )
        assert answer.status_code in {403, 404}
    stolen = httpx.delete(
        f"{first.url}/hub/api/users/{first.name}/server",
        headers={"Authorization": f"token {second.token}"},
        trust_env=False,
    )
    assert stolen.status_code in {403, 404}
    assert first.server()


def test_nobody_but_a_starting_server_reports_a_port(both: tuple[HubUser, HubUser]) -> None:
    first, second = both
    with first.kernel() as kernel:
        api, token = kernel.value(
            "[__import__('os').environ[n] for n in ('JUPYTERHUB_API_URL', 'JUPYTERHUB_API_TOKEN')]"
        )
    for body, headers in (
        ({"port": 4444}, {"Authorization": f"token {token}"}),
        ({"port": 4444}, {"Authorization": f"token {second.token}"}),
        ({"port": 4444}, {}),
    ):
        answer = httpx.post(f"{api}/gipfel/server", json=body, headers=headers, trust_env=False)
        assert answer.status_code in {400, 403}
    assert (
        httpx.post(
            f"{api}/batchspawner",
            json={"port": 4444},
            headers={"Authorization": f"token {token}"},
            trust_env=False,
        ).status_code
        == 404
    )
    assert first.request("api/status").status_code == 200


def test_files_of_a_run_are_its_users_alone(
    both: tuple[HubUser, HubUser], plain_users: tuple[UnixUser, UnixUser]
) -> None:
    first, second = plain_users
    runs = first.home / ".gipfel" / "runs"
    # The home folder is opened on purpose: the run folders must hold on their own.
    first.home.chmod(0o711)
    try:
        run = max(runs.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in (run, run / "telemetry", run / "record.json", *run.glob("telemetry/*")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
            assert second.run("ls" if path.is_dir() else "cat", str(path)).returncode != 0, path
    finally:
        first.home.chmod(0o700)


def test_a_mount_gives_no_more_than_its_user_has(
    both: tuple[HubUser, HubUser], plain_users: tuple[UnixUser, UnixUser]
) -> None:
    first, second = plain_users
    with both[1].kernel() as kernel:
        assert kernel.value(f"open('{second.home}/secret.txt').read()") == f"secret of {second.name}\n"
        assert "PermissionError" in kernel.run(f"open('{first.home}/secret.txt')").error
        assert "PermissionError" in kernel.run(f"__import__('os').listdir('{first.home}')").error


def test_in_the_container_no_process_of_others_is_seen(both: tuple[HubUser, HubUser]) -> None:
    with both[0].kernel() as kernel:
        kernel.run("import os; seen = [each for each in os.listdir('/proc') if each.isdigit()]")
        owners = kernel.value("sorted({os.stat('/proc/' + each).st_uid for each in seen})")
        count = kernel.value("len(seen)")
        mine = kernel.value("os.getuid()")
    assert owners == [mine]
    assert count < 20


def test_sockets_and_scratch_are_private(
    both: tuple[HubUser, HubUser], plain_users: tuple[UnixUser, UnixUser]
) -> None:
    first, second = plain_users
    with both[0].kernel() as kernel:
        sockets = kernel.value("__import__('os').environ['GIPFEL_SOCKETS']")
        listening = kernel.value(
            "sorted(__import__('os').listdir(__import__('os').environ['GIPFEL_SOCKETS']))"
        )
    assert listening
    assert second.run("ls", sockets).returncode != 0
    scratch = Path(sockets).parent
    assert scratch.is_relative_to("/tmp")
    about = scratch.stat()
    assert about.st_uid == first.uid
    assert stat.S_IMODE(about.st_mode) == 0o700


_LISTENING = (
    "sorted({int(line.split()[1].rpartition(':')[2], 16) for name in ('tcp', 'tcp6')"
    " for line in open(f'/proc/net/{name}').readlines()[1:]"
    " if line.split()[3] == '0A' and int(line.split()[7]) == __import__('os').getuid()})"
)


def test_a_servers_port_wants_a_token(both: tuple[HubUser, HubUser], cluster: OneMachine) -> None:
    with both[0].kernel() as kernel:
        node = kernel.value("__import__('socket').gethostname()")
        (port,) = kernel.value(_LISTENING)
        kinds = kernel.value("__import__('ipykernel').connect.get_connection_info(unpack=True)['transport']")
    url = f"http://{cluster.addresses[node]}:{port}/user/{both[0].name}/api/contents"
    assert httpx.get(url, trust_env=False, timeout=30).status_code in {302, 403}
    assert kinds == "ipc"


_FORKED = (
    "import multiprocessing\n"
    "child = multiprocessing.get_context('fork').Process(target=print, args=('from the child',))\n"
    "child.start(); child.join()"
)
#: Request that makes debugpy evaluate an expression, and ZeroMQ's greeting.
_EVALUATE = b'{"seq":1,"type":"request","command":"evaluate","arguments":{"expression":"1"}}'
_GREETINGS = (
    b"Content-Length: %d\r\n\r\n%s" % (len(_EVALUATE), _EVALUATE),
    b"\xff" + 8 * b"\0" + b"\x7f\x03\0NULL" + 48 * b"\0",
)


def test_a_kernel_listens_to_nobody_on_its_node(
    both: tuple[HubUser, HubUser], plain_users: tuple[UnixUser, UnixUser], cluster: OneMachine
) -> None:
    specs = both[0].request("api/kernelspecs").json()["kernelspecs"]
    assert specs
    assert not any(each["spec"]["metadata"].get("debugger") for each in specs.values())
    with both[0].kernel() as kernel:
        assert "from the child" in kernel.run(_FORKED).text
        ports = kernel.value(_LISTENING)
        node = kernel.value("__import__('socket').gethostname()")
        # The server's alone.
        assert len(ports) == 1
        for greeting in _GREETINGS:
            said = subprocess.run(
                ["nsenter", f"--target={cluster.pid(node)}", "--net", "runuser", "-u", plain_users[1].name,
                 "--", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{ports[0]} && cat >&3; timeout 3 cat <&3"],
                input=greeting + b"\r\n\r\n", capture_output=True, timeout=30, check=False,
            )  # fmt: skip
            assert said.stdout[:5] in {b"", b"HTTP/"}, said


class _Payload:
    """Makes a file as the user whose process unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_what_another_user_writes_into_a_launchs_store_is_not_unpickled(
    plain_users: tuple[UnixUser, UnixUser], cluster: OneMachine, runtime: Path, fuse: None
) -> None:
    try:
        image = torch_image()
    except GipfelError as error:
        pytest.skip(str(error))
    from torch.distributed import TCPStore  # noqa: PLC0415 - takes seconds

    place = LaunchPlace.prepare(plain_users[0], cluster, runtime, image)
    how = ("--gpus-per-node", "1", "--checkpoint", "attacked", "--no-preflight")
    started = place.launched(*how, "--", "train.py", "steps=100000", "pause=0.2").until(1)
    host, port = cluster.addresses[started.state["nodes"][0]], started.state["endpoint"].rpartition(":")[2]
    store = TCPStore(host, int(port), is_master=False)
    (key,) = (each for each in store.list_keys() if each.startswith("torch.rendezvous.") and "/" not in each)
    executed = place.folder / "executed"
    store.set(key, base64.b64encode(pickle.dumps(_Payload(executed))))
    assert wait_until(lambda: started.state["phase"] == "ended" or executed.exists(), 60)
    assert not executed.exists()
    assert "another process wrote into this launch's rendezvous" in started.state["reason"]
    assert wait_until(lambda: not place.find(str(started.folder)), 60)


def test_a_comment_of_one_user_names_no_job_of_another(
    both: tuple[HubUser, HubUser], plain_users: tuple[UnixUser, UnixUser], cluster: OneMachine
) -> None:
    first, second = plain_users
    slurm = SlurmScheduler(environment={**os.environ, **cluster.environment})

    def comments(user: UnixUser) -> list[str]:
        # What the attacker sees of the others' jobs; one that a launch left in the queue has no mark.
        lines = cluster.call(["squeue", "--noheader", f"--user={user.name}", "--format=%A %k"]).splitlines()
        return next(line.split() for line in lines if " gipfel-" in line)

    (job, mark), (_, other) = comments(first), comments(second)
    prefix, lost = mark.rpartition("-")[0] + "-", f"{mark.rpartition('-')[0]}-feedfacefeedface"
    comment = f"x\n{job}|{lost}|{first.name}|RUNNING|\n3; id|{lost}|{first.name}|RUNNING|\n{job}|{lost}|"
    variables = [f"{name}={value}" for name, value in cluster.environment.items()]
    words = ["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true"]
    forged = [
        second.run("env", *variables, *words, f"--comment={each}").stdout.strip() for each in (comment, mark)
    ]
    try:
        assert all(each.isdecimal() for each in forged)
        found = asyncio.run(slurm.marked(prefix))
        assert [each.job_id for each in found if each.user == first.name] == [job]
        assert {each.mark for each in found} == {mark, other}
        assert asyncio.run(slurm.find(mark, first.name)) == job
        assert asyncio.run(slurm.find(lost, first.name)) is None
    finally:
        for each in forged:
            cluster.call(["scancel", each])
