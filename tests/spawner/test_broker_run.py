"""Commands in other environments, through a real broker: streams, signals, status, every kind of end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_jobs import client_process, run_through, running_broker, until, write_edf

from gipfel_cluster.broker.context import JobContext, variables_for_new_job
from gipfel_cluster.broker.messages import KernelRequest, PathRef, RunRequest
from gipfel_cluster.edf import Mount
from gipfel_cluster.process.tree import Process, descendants


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_edf(tmp_path, "other")
    return tmp_path


@pytest.fixture
def broker(home: Path) -> Iterator[JobContext]:
    with running_broker(home) as context:
        yield context


def _sleeper(broker: JobContext, home: Path, handler: str = "pass") -> "tuple[subprocess.Popen[str], int]":
    """A client whose command waits, and the command's process."""
    ready = home / "ready"
    ready.unlink(missing_ok=True)
    code = (
        f"import os, pathlib, signal, sys, time; {handler};"
        f"pathlib.Path({str(ready)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    client = client_process(broker, "other", [sys.executable, "-c", code])
    until(lambda: (ready.exists() and ready.read_text()) or client.poll() is not None)
    assert client.poll() is None, client.communicate()
    return client, int(ready.read_text())


def test_streams_status_and_variables_reach_the_command(broker: JobContext, home: Path) -> None:
    code = "cat; echo $WHERE $GIPFEL_ENGINE; pwd; echo wrong >&2; exit 7"
    status, output, errors = run_through(broker, "other", "sh", "-c", code, given="given\n", cwd=home)
    assert (status, output.split("\n"), errors) == (7, ["given", "the other host", str(home), ""], "wrong\n")


def test_a_stream_may_be_long_and_the_client_may_not_read(broker: JobContext) -> None:
    status, output, _ = run_through(broker, "other", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert (status, len(output)) == (0, 3_000_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_the_command(broker: JobContext, home: Path, number: signal.Signals) -> None:
    handler = f"signal.signal({int(number)}, lambda *_: sys.exit(42))"
    client, _ = _sleeper(broker, home, handler)
    client.send_signal(number)
    client.communicate(timeout=20)
    assert client.returncode == 42


def test_a_signal_that_ends_the_command_is_its_status(broker: JobContext, home: Path) -> None:
    client, _ = _sleeper(broker, home)
    client.send_signal(signal.SIGTERM)
    client.communicate(timeout=20)
    assert client.returncode == 128 + signal.SIGTERM


def test_killing_a_client_ends_its_command(broker: JobContext, home: Path) -> None:
    deaf = "[signal.signal(n, signal.SIG_IGN) for n in (15, 2, 1)]"
    client, pid = _sleeper(broker, home, deaf)
    command = Process.of(pid)
    assert command
    client.kill()
    client.communicate()
    until(lambda: not command.alive, 5)
    until(lambda: not list(Path(broker.scratch).glob("b*")), 5)
    assert run_through(broker, "other", "true")[0] == 0


def test_ending_the_broker_ends_its_commands(home: Path) -> None:
    with running_broker(home) as context:
        client, pid = _sleeper(context, home)
        command = Process.of(pid)
        assert command
    assert not command.alive
    _, errors = client.communicate(timeout=20)
    assert client.returncode != 0
    assert "Traceback" not in errors


def test_a_broker_imports_modules_at_the_first_request(broker: JobContext) -> None:
    (pid,) = descendants(os.getpid())
    status, maps = Path(f"/proc/{pid}/status"), Path(f"/proc/{pid}/maps")

    def catches_signals() -> bool:
        (caught,) = (line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)

    until(catches_signals)
    assert "pydantic_core" not in maps.read_text()
    os.kill(pid, signal.SIGUSR1)
    assert run_through(broker, "other", "echo", "hello")[:2] == (0, "hello\n")
    assert "pydantic_core" in maps.read_text()


def test_clients_report_a_killed_broker_with_one_line(broker: JobContext, home: Path) -> None:
    client, pid = _sleeper(broker, home)
    (owner,) = [
        each for each in descendants(os.getpid())
        if b"gipfel_cluster.broker\0" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]  # fmt: skip
    os.kill(owner, signal.SIGKILL)
    assert client.wait(20) == 1
    os.kill(pid, signal.SIGKILL)  # The host engine leaves it to the job, which ends whatever is below it.
    _, errors = client.communicate(timeout=20)
    assert errors.strip() == "gipfel: This job's broker does not answer. Restart the server."
    status, _, errors = run_through(broker, "other", "true")
    assert (status, "does not answer" in errors) == (1, True)


@pytest.mark.parametrize(
    ("edf", "command", "words"),
    [
        ("nowhere", ("true",), "no EDF of this name"),
        ("broken", ("true",), "broken.toml"),
        ("boxed", ("true",), "/nowhere/image.sqsh"),
        ("other", ("/no/such/program",), "/no/such/program"),
    ],
)
def test_a_command_that_cant_be_run_is_reported_with_one_line(
    broker: JobContext, home: Path, edf: str, command: tuple[str, ...], words: str
) -> None:
    write_edf(home, "broken", "image = [\n")
    write_edf(home, "boxed", 'image = "/nowhere/image.sqsh"\n')
    status, output, errors = run_through(broker, edf, *command)
    assert status != 0
    assert output == ""
    assert words in errors
    assert len(errors.splitlines()) == 1


def test_a_second_container_runs_no_ssh_server(broker: JobContext, home: Path) -> None:
    write_edf(
        home, "open", '[annotations]\ncom.hooks.ssh.enabled = "true"\ncom.hooks.dcgm.enabled = "true"\n'
    )
    status, _, errors = run_through(broker, "open", "true")
    assert status == 0
    assert "com.hooks.ssh" not in errors


@pytest.mark.parametrize(
    "variables",
    [{"LD_PRELOAD": "x"}, {"GIPFEL_RUN": "x"}, {"SLURM_JOB_ID": "1"}, {"PATH": "/"}, {"A=B": "x"},
     {"A": "\0"}, {"A": "x" * 40_000}, {f"A{n}": "" for n in range(65)}],
)  # fmt: skip
def test_a_client_can_not_change_protected_variables(variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"environment"):
        RunRequest(edf="other", command=("true",), environment=variables)


def test_a_kernels_python_is_a_keyword_or_a_path(tmp_path: Path) -> None:
    ref = PathRef.of(tmp_path)
    assert KernelRequest(edf="a", connection_file=ref, python="/opt/bin/python").python == "/opt/bin/python"
    for wrong in ("python3", "-c", "image\n", "runtime/../x"):
        with pytest.raises(ValueError, match="python"):
            KernelRequest(edf="a", connection_file=ref, python=wrong)


def test_host_path_needs_equal_device_and_inode(broker: JobContext, tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    mounts = (
        Mount(source=str(tmp_path / "elsewhere"), destination="/work"),
        Mount(source=str(tmp_path / "data"), destination="/work"),
    )
    known = broker.model_copy(update={"mounts": mounts})
    real = PathRef.of(tmp_path / "data" / "deep")
    seen = real.model_copy(update={"path": "/work/deep"})
    assert known.host_path(seen) == tmp_path / "data" / "deep"
    assert known.host_path(real) == tmp_path / "data" / "deep"
    assert known.host_path(seen.model_copy(update={"inode": real.inode + 1})) is None
    assert known.host_path(PathRef.of(Path("/etc")).model_copy(update={"path": "/usr"})) is None


def test_new_jobs_get_no_tokens() -> None:
    given = {"JUPYTERHUB_API_TOKEN": "x", "SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "HOME": "/h", "A B": "x"}
    assert variables_for_new_job(given) == {"SLURM_CONF": "/c", "HOME": "/h"}
