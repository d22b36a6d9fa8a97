"""``gipfel kernel``: what it writes, what it refuses, and kernels that Jupyter's own client starts by it."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from gipfel_extension.cli.kernelspec import kernel_folders, name_for

Gipfel = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    left_out = ("GIPFEL_", "JUPYTER", "JPY_", "SLURM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**kept, "HOME": str(tmp_path)}


@pytest.fixture
def gipfel(tmp_path: Path, environment: dict[str, str]) -> Gipfel:
    (tmp_path / ".edf").mkdir()
    (tmp_path / ".edf" / "plain.toml").write_text('[env]\nWHERE = "the other"\n')

    def call(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-m", "gipfel_extension.cli", "kernel", *words],
            capture_output=True, text=True, timeout=90, cwd=tmp_path, env={**environment, **more},
        )  # fmt: skip

    return call


def _written(tmp_path: Path, name: str) -> dict[str, Any]:
    content = json.loads((tmp_path / ".local/share/jupyter/kernels" / name / "kernel.json").read_text())
    assert isinstance(content, dict)
    return content


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("gipfel: ")
    return done.stderr


def _started(tmp_path: Path, environment: dict[str, str], name: str) -> KernelManager:
    specs = KernelSpecManager(kernel_dirs=[str(tmp_path / ".local/share/jupyter/kernels")])
    private = Config({"KernelManager": {"transport": "ipc"}})
    folder = tmp_path / "runtime"
    folder.mkdir(exist_ok=True)
    manager = KernelManager(
        kernel_name=name, kernel_spec_manager=specs, config=private,
        connection_file=str(folder / f"{name}.json"),
    )  # fmt: skip
    manager.start_kernel(env=environment, cwd=str(tmp_path))
    return manager


def _said(client: Any, code: str) -> str:
    text: list[str] = []

    def note(message: dict[str, Any]) -> None:
        text.append(message["content"].get("text") or message["content"].get("ename", ""))

    client.execute_interactive(code, output_hook=note, timeout=60, allow_stdin=False)
    return "".join(text).strip()


def _wait_for_text(client: Any, number: str, text: str) -> None:
    while True:
        message = client.get_iopub_msg(timeout=60)
        ours = message["parent_header"].get("msg_id") == number
        if ours and text in message["content"].get("text", ""):
            return


def _interrupt(manager: KernelManager, client: Any, number: str) -> None:
    """Interrupt as a person does: again, where a signal met the kernel's own code and was lost."""
    for _ in range(5):
        manager.interrupt_kernel()
        with contextlib.suppress(queue.Empty):
            assert client.get_shell_msg(timeout=8)["parent_header"]["msg_id"] == number
            return
    pytest.fail("no interrupt was answered")


def test_an_edf_becomes_a_kernel_that_is_interrupted_restarted_and_shut_down(
    gipfel: Gipfel, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = gipfel("add", "plain", "--python", "runtime", "--display-name", "The other")
    assert (done.returncode, done.stdout) == (0, "plain\n"), done.stderr
    content = _written(tmp_path, "plain")
    assert content["argv"][0] == "python3"
    assert content["display_name"] == "The other"
    manager = _started(tmp_path, environment, "plain")
    try:
        client = manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        code = "import os; print(os.environ['WHERE'], os.getcwd(), os.environ.get('JPY_PARENT_PID'))"
        assert _said(client, code) == f"the other {tmp_path} None"
        # An error aborts what is queued behind it, also what arrives a little later.
        number = client.execute("import time; print('asleep'); time.sleep(60)", stop_on_error=False)
        # Interrupted earlier, it would continue and sleep.
        _wait_for_text(client, number, "asleep")
        _interrupt(manager, client, number)
        assert _said(client, "1/0") == "ZeroDivisionError"
        pid = int(_said(client, "print(os.getpid())"))
        manager.restart_kernel()
        client.wait_for_ready(timeout=60)
        assert _said(client, "print('os' in globals())") == "False"
        assert not Path(f"/proc/{pid}").exists()
        client.stop_channels()
    finally:
        manager.shutdown_kernel()
    assert not manager.is_alive()


def test_a_killed_client_leaves_no_kernel(
    gipfel: Gipfel, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert gipfel("add", "plain", "--python", "runtime").returncode == 0
    manager = _started(tmp_path, environment, "plain")
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        pid = int(_said(client, "import os; print(os.getpid())"))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_virtual_environment_becomes_a_kernel(gipfel: Gipfel, tmp_path: Path) -> None:
    folder = tmp_path / "analysis" / ".venv"
    venv.create(folder, symlinks=True)
    done = gipfel("add", "--venv", str(folder))
    if not Path(sys.prefix, "kernels/start.py").exists():
        # Without a runtime nobody brings the ipykernel that it lacks.
        assert "can't be a kernel" in _one_line(done)
        assert "pip install ipykernel" in done.stderr
        (lib,) = (folder / "lib").glob("python3*/site-packages")
        (lib / "ipykernel").mkdir()
        for name in ("__init__", "kernelapp"):
            (lib / "ipykernel" / f"{name}.py").write_text("")
        done = gipfel("add", "--venv", str(folder))
    assert (done.returncode, done.stdout) == (0, "analysis\n"), done.stderr
    content = _written(tmp_path, "analysis")
    assert content["argv"][0] == f"{folder}/bin/python"
    assert content["env"]["VIRTUAL_ENV"] == str(folder)
    version = ".".join(map(str, sys.version_info[:2]))
    assert content["display_name"] == f"analysis (Python {version})"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "no EDF of this name"),
        (("./nowhere.toml",), "can't be read"),
        (("broken",), "broken.toml"),
        (("boxed",), "/nowhere/image.sqsh"),
        (("plain", "--python", "/no/such/python"), "There is no /no/such/python in the container"),
        (("plain", "--python", "runtime", "--name", "../up"), "is not a valid kernel name"),
        (("plain", "--python", "runtime", "--name", "python3"), "is not a valid kernel name"),
        (("plain", "--python", "runtime", "--name", "theirs"), "did not make"),
        (("--venv", "nowhere"), "There is no directory"),
        (("--venv", "."), "has no bin/python"),
        (("--venv", "gone"), "does not exist here: /no/such/python"),
    ],
)
def test_what_cant_be_a_kernel_is_one_line(
    gipfel: Gipfel, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / ".edf" / "broken.toml").write_text("image = [\n")
    (tmp_path / ".edf" / "boxed.toml").write_text('image = "/nowhere/image.sqsh"\n')
    (tmp_path / ".local/share/jupyter/kernels/theirs").mkdir(parents=True)
    (tmp_path / "gone" / "bin").mkdir(parents=True)
    (tmp_path / "gone" / "bin" / "python").symlink_to("/no/such/python")
    done = gipfel("add", *words)
    assert done.returncode == 1
    assert said in _one_line(done)


@pytest.mark.parametrize(
    "words", [("add",), ("add", "a", "--python", "python3"), ("add", "--venv", "a", "--python", "image")]
)
def test_a_wrong_command_line_is_status_2(gipfel: Gipfel, words: tuple[str, ...]) -> None:
    done = gipfel(*words)
    assert done.returncode == 2
    assert "--help" in _one_line(done)


def test_every_command_has_an_example(gipfel: Gipfel) -> None:
    for word in ("add", "list", "remove"):
        assert f"gipfel kernel {word}" in gipfel(word, "--help").stdout.partition("Examples:")[2]


def test_kernels_are_listed_and_removed(gipfel: Gipfel, tmp_path: Path) -> None:
    assert "no kernel is registered" in gipfel("list").stderr
    assert gipfel("add", "plain", "--no-check", "--name", "One").returncode == 0
    assert gipfel("list").stdout == "One\tplain (Python)\tEDF plain, Python: image\n"
    (row,) = json.loads(gipfel("list", "--json").stdout)
    assert (row["name"], row["edf"]) == ("One", "plain")
    # A server without the home folder finds it too.
    assert (tmp_path / ".gipfel/server/data/kernels/One/kernel.json").exists()
    theirs = tmp_path / ".local/share/jupyter/kernels/theirs"
    theirs.mkdir()
    assert "not gipfel's" in _one_line(gipfel("remove", "theirs"))
    assert "There is no kernel" in _one_line(gipfel("remove", "../kernels/One"))
    assert gipfel("remove", "One").returncode == 0
    assert [each.name for each in theirs.parent.iterdir()] == ["theirs"]
    assert not list((tmp_path / ".gipfel/server/data/kernels").iterdir())


def test_a_jobs_own_folder_is_where_its_server_looks(gipfel: Gipfel, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert gipfel("add", "plain", "--no-check", JUPYTER_DATA_DIR=str(folder)).returncode == 0
    assert (folder / "kernels/plain/kernel.json").exists()
    assert not (tmp_path / ".local").exists()


def test_names_and_folders(tmp_path: Path) -> None:
    assert name_for("My Environment/ü 2.1") == "my-environment-2.1"
    assert name_for("…") == "kernel"
    same = kernel_folders({"HOME": str(tmp_path), "JUPYTER_DATA_DIR": f"{tmp_path}/.gipfel/server/data"})
    assert same == (tmp_path / ".gipfel/server/data/kernels",)
