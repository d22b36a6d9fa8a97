"""From inside a server's container: a kernel in another image, and a batch job on the other node."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edf_files import write_edf
from hub_process import HubProcess
from hub_user import HubUser
from images import Images
from kernel_client import Kernel
from notebook_files import printed, write_notebook
from one_machine import wait_until
from unix_users import UnixUser

pytestmark = pytest.mark.cluster

_CALL = """
import json, os, subprocess, sys
done = subprocess.run([sys.prefix + "/bin/gipfel", *{words!r}], capture_output=True, text=True, cwd={cwd!r})
print(json.dumps([done.returncode, done.stdout, done.stderr]))
"""
_PLACE = (
    "[__import__('os').getcwd(), __import__('sys').executable, __import__('os').environ['GIPFEL_ENGINE'],"
    " __import__('os').environ.get('GREETING'), __import__('os').path.exists('/only-there/file'),"
    " __import__('os').path.exists('/usr/bin/python3')]"
)


@pytest.fixture(scope="module")
def user(plain_users: tuple[UnixUser, UnixUser]) -> UnixUser:
    return plain_users[0]


@pytest.fixture(scope="module")
def server(hub: HubProcess, user: UnixUser, images: Images) -> Iterator[HubUser]:
    """A server in an image without Python that holds every GPU of its node."""
    user.write("there/file", "of the other\n")
    given = (f"{user.home}/there:/given",)
    write_edf(user, "mine", image=images.debian, env={"GREETING": "mine"}, mounts=given)
    mounts = (f"{user.home}/there:/only-there",)
    write_edf(user, "other", image=images.python, env={"GREETING": "other"}, mounts=mounts)
    write_edf(user, "bare", image=images.debian, env={"GREETING": "bare"}, mounts=mounts)
    person = hub.user(user.name)
    person.start_server({"edf": "mine", "gpus": 4, "stage": f"{user.home}/there/file"})
    yield person
    if person.server():
        person.stop_server()


@pytest.fixture(scope="module")
def kernel(server: HubUser) -> Iterator[Kernel]:
    """A kernel of the server's own container."""
    with server.kernel() as own:
        yield own


def _gipfel(kernel: Kernel, *words: str, cwd: str = "") -> tuple[int, str, str]:
    done = kernel.run(_CALL.format(words=words, cwd=cwd or None), 150)
    assert not done.error, done.error
    status, output, errors = json.loads(done.text)
    return status, output, errors


def _started(server: HubUser, name: str) -> tuple[str, Kernel]:
    answer = server.request("api/kernels", method="POST", json={"name": name})
    answer.raise_for_status()
    number = answer.json()["id"]
    return number, Kernel(server.websocket(f"api/kernels/{number}/channels"))


def test_data_that_the_form_names_is_a_copy_of_the_node(kernel: Kernel) -> None:
    assert kernel.value("open('/given/file').read()") == "of the other\n"
    mounted = kernel.value("[line for line in open('/proc/self/mountinfo') if 'gipfel-staged' in line]")
    assert [line.split()[4] for line in mounted] == ["/given/file"]


def test_a_kernel_in_another_image_is_registered_and_runs_there(server: HubUser, kernel: Kernel) -> None:
    status, name, errors = _gipfel(kernel, "kernel", "add", "other")
    assert (status, name) == (0, "other\n"), errors
    assert "other (Python 3.11)" in errors
    mine = kernel.value(_PLACE)
    assert mine[3:] == ["mine", False, False]
    number, other = _started(server, "other")
    with other:
        place = other.value(_PLACE)
        assert place[1:] == ["/usr/bin/python3", "bubblewrap", "other", True, True]
        assert place[0] == mine[0]
        # The same node, other processes.
        assert other.value("__import__('socket').gethostname()") == kernel.value(
            "__import__('socket').gethostname()"
        )
        assert other.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == "0,1,2,3"
        other.run("open('/only-there/written', 'w').write('by the other')")
    assert server.request(f"api/kernels/{number}", method="DELETE").status_code == 204


def test_an_image_without_python_gets_the_runtimes(server: HubUser, kernel: Kernel, runtime: Path) -> None:
    status, name, errors = _gipfel(kernel, "kernel", "add", "bare", "--name", "there")
    assert (status, name) == (0, "there\n"), errors
    assert "has no Python on its PATH. The kernel runs with the runtime's Python." in errors
    refused = _gipfel(kernel, "kernel", "add", "bare", "--python", "image")
    assert (refused[0], len(refused[2].splitlines())) == (1, 1)
    number, other = _started(server, "there")
    with other:
        place = other.value(_PLACE)
        assert Path(place[1]).parent.parent == runtime
        assert place[2:] == ["bubblewrap", "bare", True, False]
    assert server.request(f"api/kernels/{number}", method="DELETE").status_code == 204
    listed = json.loads(_gipfel(kernel, "kernel", "list", "--json")[1])
    assert {each["name"]: each["edf"] for each in listed} == {"other": "other", "there": "bare"}
    assert _gipfel(kernel, "kernel", "remove", "there")[0] == 0
    assert "there" not in server.request("api/kernelspecs").json()["kernelspecs"]


def test_it_is_interrupted_restarted_killed_and_shut_down(
    server: HubUser, kernel: Kernel, user: UnixUser
) -> None:
    assert _gipfel(kernel, "kernel", "add", "other")[0] == 0
    number, other = _started(server, "other")
    with other:
        before = other.value("__import__('os').getpid()")
        assert before
        path = f"api/kernels/{number}"
        others = len(_in(user, "other"))
        assert others

        def interrupt() -> Any:
            time.sleep(1)
            return server.request(f"{path}/interrupt", method="POST").status_code

        began = time.monotonic()
        asked = _later(interrupt)
        assert "KeyboardInterrupt" in other.run("import time; time.sleep(60)").error
        assert asked() == 204
        assert time.monotonic() - began < 20
        other.run("kept = 1")
        assert other.value("kept") == 1
    assert server.request(f"{path}/restart", method="POST").status_code == 200
    with Kernel(server.websocket(f"{path}/channels")) as anew:
        assert "NameError" in anew.run("kept").error
        # Whoever ends the process that stands for the kernel ends the kernel.
        code = "[p for p in os.listdir('/proc') if p.isdigit() and b'broker.kernel' in"
        code += " open(f'/proc/{p}/cmdline', 'rb').read()]"
        (client,) = kernel.value(f"(exec('import os') or {code})")
        assert kernel.run(f"import os; os.kill({client}, 9)").error == ""
        # Jupyter starts it again by itself.
        assert wait_until(lambda: server.request(path).json()["execution_state"] != "dead", 30)
    with Kernel(server.websocket(f"{path}/channels")) as again:
        assert again.value("6 * 7") == 42
    assert wait_until(lambda: len(_in(user, "other")) <= others, 10), _in(user, "other")
    assert server.request(path, method="DELETE").status_code == 204
    assert wait_until(lambda: not _in(user, "other"), 20), _in(user, "other")


def test_a_virtual_environment_becomes_a_kernel_without_ipykernel(
    server: HubUser, kernel: Kernel, user: UnixUser
) -> None:
    home = kernel.value("__import__('os').getcwd()")
    status, _, errors = _gipfel(kernel, "kernel", "add", "--venv", f"{home}/nowhere")
    assert (status, len(errors.splitlines())) == (1, 1)
    (Path(home) / "empty" / "bin").mkdir(parents=True)
    assert "has no bin/python" in _gipfel(kernel, "kernel", "add", "--venv", f"{home}/empty")[2]
    # The other image has Python: an environment of its own, without pip and ipykernel.
    assert _gipfel(kernel, "kernel", "add", "other")[0] == 0
    number, other = _started(server, "other")
    with other:
        made = other.run(
            "import os, subprocess; os.makedirs(f'{os.getcwd()}/analysis/bin')\n"
            "os.symlink('/usr/bin/python3', f'{os.getcwd()}/analysis/bin/python')\n"
            "open(f'{os.getcwd()}/analysis/pyvenv.cfg', 'w').write('home = /usr/bin\\n')"
        )
        assert not made.error
    server.request(f"api/kernels/{number}", method="DELETE")
    # In the server's own image that Python is missing, and it says so.
    status, _, errors = _gipfel(kernel, "kernel", "add", "--venv", f"{home}/analysis")
    assert (status, "does not exist here: /usr/bin/python3" in errors) == (1, True), errors
    status, name, errors = _gipfel(
        kernel, "kernel", "add", "other", "--venv", f"{home}/analysis", "--name", "analysis"
    )
    assert (status, name) == (0, "analysis\n"), errors
    number, own = _started(server, "analysis")
    with own:
        assert own.value("__import__('sys').prefix") == f"{home}/analysis"
    server.request(f"api/kernels/{number}", method="DELETE")


def test_a_notebook_is_submitted_from_inside_and_runs_on_the_other_node(
    kernel: Kernel, user: UnixUser, images: Images
) -> None:
    here = kernel.value("__import__('os').getcwd()")
    body = """\
import os, socket
print(text.encode().hex())
print(socket.gethostname(), os.environ["GREETING"], os.getcwd(), os.path.exists("/only-there/file"))
print(open("/proc/%d/cmdline" % os.getppid()).read().encode().hex())"""
    user.own(write_notebook(Path(here) / "in.ipynb", body=body))
    value = 'it\'s "$(id)"\n`x` {python} ü✓'
    status, output, errors = _gipfel(
        kernel,
        *("submit", "in.ipynb", "out.ipynb", "-p", "text", value, "--edf", "other"),
        *("--gpus-per-node", "4", "--partition", "debug", "--time", "5", "--wait"),
        cwd=here,
    )
    assert status == 0, errors
    assert output.strip().isdecimal()
    carried, place, papermill = printed(Path(here) / "out.ipynb")
    assert carried == value.encode().hex()
    node, *rest = place.split()
    assert rest == ["other", here, "True"]
    assert node != kernel.value("__import__('socket').gethostname()")
    # Nobody on the node reads a parameter's value in a list of processes.
    assert b"training.papermill" in bytes.fromhex(papermill)
    assert b"$(id)" not in bytes.fromhex(papermill)
    record = json.loads((user.home / ".gipfel/runs" / f"tests-{output.strip()}" / "record.json").read_text())
    assert (record["kind"], record["exit_status"], record["edf"]["name"]) == ("notebook", 0, "other")
    assert "$(id)" not in json.dumps(record["command"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("/opt/in.ipynb", "x.ipynb"), "does not exist"),
        (("/tmp/in.ipynb", "x.ipynb"), "The host does not see /tmp/in.ipynb"),
        (("in.ipynb", "/tmp/x.ipynb"), "The host does not see /tmp"),
        (("in.ipynb", "x.ipynb", "--edf", "nowhere"), "no EDF of this name"),
        (
            ("in.ipynb", "x.ipynb", "--scheduler", "local"),
            "can submit to the scheduler of its job only, which is slurm",
        ),
        (("in.ipynb", "x.ipynb", "--partition", "nowhere"), "partition"),
    ],
)
def test_what_the_host_does_not_see_is_one_line(
    kernel: Kernel, user: UnixUser, words: tuple[str, ...], said: str
) -> None:
    here = kernel.value("__import__('os').getcwd()")
    user.own(write_notebook(Path(here) / "in.ipynb"))
    kernel.run(f"import shutil; shutil.copy({here + '/in.ipynb'!r}, '/tmp/in.ipynb')")
    status, output, errors = _gipfel(kernel, "submit", *words, cwd=here)
    assert (status, output) == (1, "")
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_another_user_cant_reach_the_socket(kernel: Kernel, plain_users: tuple[UnixUser, UnixUser]) -> None:
    sockets = kernel.value("__import__('os').environ['GIPFEL_SOCKETS']")
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({sockets + '/broker'!r})"
    assert plain_users[0].run("/usr/bin/python3", "-c", code).returncode == 0
    refused = plain_users[1].run("/usr/bin/python3", "-c", code)
    assert "PermissionError" in refused.stderr


def test_the_end_of_the_server_ends_both(server: HubUser, kernel: Kernel, user: UnixUser) -> None:
    assert _gipfel(kernel, "kernel", "add", "other")[0] == 0
    _, other = _started(server, "other")
    with other:
        assert other.value("1") == 1
    assert _in(user, "other")
    server.stop_server()
    assert wait_until(lambda: not user.processes(), 15), _commands(user)


def _in(user: UnixUser, greeting: str) -> list[int]:
    """Processes of the user in the container whose EDF says this."""
    found = []
    for pid in user.processes():
        try:
            if f"GREETING={greeting}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def _commands(user: UnixUser) -> str:
    argv = ["ps", "-fu", user.name]
    return subprocess.run(argv, capture_output=True, text=True).stdout


def _later(call: Any) -> Any:
    beside = ThreadPoolExecutor(1)
    future = beside.submit(call)
    beside.shutdown(wait=False)
    return lambda: future.result(30)
