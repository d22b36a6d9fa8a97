"""The host side of a job, as the batch script starts it: a separate process, on this machine."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gipfel_cluster.job import JOB_VARIABLE, JobSpec, batch_script
from gipfel_cluster.model import PYTHON
from gipfel_cluster.process.tree import Process, descendants, kill_tree
from gipfel_extension.telemetry.store.segments import read_samples

LIMIT_S = 60


@pytest.fixture
def job(tmp_path: Path) -> Iterator["RunningJob"]:
    running = RunningJob(tmp_path)
    yield running
    running.end()


class RunningJob:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs = home / "runs"
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "USER": "ada", "GIPFEL_RUNS": str(self.runs),
            "GIPFEL_JOB_ID": "7", "JUPYTERHUB_API_TOKEN": "a-secret-of-the-server",
        }  # fmt: skip
        self.process: subprocess.Popen[str] | None = None

    @property
    def run(self) -> Path:
        return self.runs / "here-7"

    def start(self, *command: str, **more: object) -> "subprocess.Popen[str]":
        spec = JobSpec(
            kind="notebook", command=command, cluster="here", interval=0.1, sources=("host",),
            options={"gpus": 0}, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        return self.start_with(spec.model_dump_json())

    def start_with(self, content: str) -> "subprocess.Popen[str]":
        script = self.home / "script.sh"
        script.write_text(batch_script(sys.executable))
        self.process = subprocess.Popen(
            ["/bin/sh", str(script)], env=self.environment | {JOB_VARIABLE: content}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        return self.process

    def finish(self, *command: str, **more: object) -> tuple[int, str, str]:
        process = self.start(*command, **more)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def record(self) -> dict[str, object]:
        content: dict[str, object] = json.loads((self.run / "record.json").read_text())
        return content

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=LIMIT_S)


def test_a_job_without_a_container_runs_in_the_environment_that_starts_it(
    job: RunningJob, tmp_path: Path
) -> None:
    # A runtime holds a server and no PyTorch: without mounts, what is installed beside the hub counts.
    root = tmp_path / "runtime"
    (root / "bin").mkdir(parents=True)
    (root / "bin/python3").symlink_to(sys.executable)
    facts = {"prefix": str(root), "version": "1", "arch": platform.machine(), "key": "k", "distributions": {}}
    (root / "runtime.json").write_text(json.dumps(facts))
    status, out, err = job.finish(PYTHON, "-c", "import sys; print(sys.executable)", runtime=str(root))
    assert (status, out.strip()) == (0, sys.executable), err


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def rows_of(folder: Path) -> int:
    # By the project's own reader: a segment is empty for a moment after its creation, and torn at its end
    # while a batch is written and where the recorder was killed.
    return read_samples(folder).rows


def test_it_runs_the_command_and_leaves_a_record_and_samples(job):
    code = (
        "import os, pathlib, sys, time\n"
        "telemetry = pathlib.Path(os.environ['GIPFEL_RUN'], 'telemetry')\n"
        f"ends = time.monotonic() + {LIMIT_S / 2}\n"
        "while not list(telemetry.glob('*.arrows')) and time.monotonic() < ends: time.sleep(0.05)\n"
        "time.sleep(0.5); print(sys.executable); sys.exit(7)"
    )
    status, out, err = job.finish("{python}", "-c", code)
    assert (status, out.strip()) == (7, sys.executable), err
    record = job.record()
    assert record["exit_status"] == 7
    assert record["ended"] > record["started"]
    assert record["options"] == {"gpus": 0}
    assert record["engine"] == "host"
    assert {"gipfel", "python"} <= set(record["versions"])
    assert rows_of(job.run / "telemetry") >= 2
    assert list((job.run / "telemetry").glob("*.closed.*"))
    assert (job.run.stat().st_mode & 0o777, (job.run / "record.json").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )


def test_record_recorder_and_arguments_contain_no_token(job):
    job.start("{python}", "-c", "import time; time.sleep(30)")
    wait_for(job.run / "record.json")
    deadline = time.monotonic() + LIMIT_S
    below: tuple[int, ...] = ()
    while len(below) < 2 and time.monotonic() < deadline:
        below = descendants(job.process.pid)
        time.sleep(0.2)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (job.process.pid, *below)]
    assert not [line for line in lines if b"a-secret" in line]
    recorder = next(
        pid for pid, line in zip((job.process.pid, *below), lines, strict=True) if b"recorder" in line
    )
    assert b"a-secret" not in Path(f"/proc/{recorder}/environ").read_bytes()
    assert "a-secret" not in (job.run / "record.json").read_text()


def test_the_command_gets_the_paths_of_its_run_and_sockets(job):
    names = ["GIPFEL_RUN", "GIPFEL_SOCKETS", "GIPFEL_JOB_ID", "GIPFEL_CLUSTER", "GIPFEL_ENGINE"]
    names.append("GIPFEL_SCHEDULER")
    names.append("JUPYTERHUB_API_TOKEN")
    code = (
        "import json, os;"
        f"print(json.dumps([os.environ[n] for n in {names!r}] + ['GIPFEL_JOB' in os.environ]))"
    )
    _, out, err = job.finish("{python}", "-c", code)
    run, sockets, *others = json.loads(out)
    assert run == str(job.run), err
    assert len(sockets) < 60
    assert not Path(sockets).exists(), "the folder of the sockets outlives the job"
    assert others == ["7", "here", "host", "local", "a-secret-of-the-server", False]


def test_a_job_that_is_killed_while_it_ends_has_its_end_on_record(job):
    deaf = job.home / "deaf"
    left = f"trap '' TERM; echo $$ > {deaf}; while :; do sleep 0.1; done"
    job.start("sh", "-c", f'setsid sh -c "$0" & while [ ! -s {deaf} ]; do sleep 0.05; done; exit 3', left)
    deadline = time.monotonic() + LIMIT_S
    while not (job.run / "record.json").exists() or not job.record().get("ended"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process = Process.of(int(deaf.read_text()))
    kill_tree(job.process.pid)
    job.process.kill()
    assert process is not None, "its end was written only after everything else"
    assert job.record()["exit_status"] == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_reaches_the_command_and_its_status_comes_back(job, number):
    ready = job.home / "ready"
    code = (
        f"import signal, sys, time, pathlib; signal.signal({int(number)}, lambda *_: sys.exit(42));"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    )
    process = job.start("{python}", "-c", code)
    wait_for(ready)
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 42
    assert job.record()["exit_status"] == 42


def test_a_missing_working_directory_is_reported_with_one_line(job):
    (job.home / "lost.toml").write_text('workdir = "/no/such/folder"\n')
    status, _, err = job.finish("true", edf=str(job.home / "lost.toml"))
    assert status == 1
    assert err.splitlines()[-1].startswith("gipfel: The working directory /no/such/folder does not exist on ")
    assert "Traceback" not in err
    assert job.record()["exit_status"] == 1


def test_background_processes_end_with_the_job(job):
    pids = job.home / "pids"
    code = (
        "import subprocess, sys;"
        "quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL};"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True, **quiet);"
        f"open({str(pids)!r}, 'w').write(str(p.pid))"
    )
    status, _, err = job.finish("{python}", "-c", code)
    assert status == 0, err
    assert Process.of(int(pids.read_text())) is None


def test_a_killed_recorder_is_recorded_and_the_command_continues(job):
    ready = job.home / "ready"
    killed = job.home / "killed"
    code = (
        "import pathlib, time\n"
        f"ready, killed = pathlib.Path({str(ready)!r}), pathlib.Path({str(killed)!r})\n"
        "ready.touch()\n"
        "while not killed.exists(): time.sleep(0.05)\n"
        "time.sleep(0.5); print('still here')"
    )
    process = job.start("{python}", "-c", code)
    wait_for(ready)
    deadline = time.monotonic() + LIMIT_S
    while rows_of(job.run / "telemetry") < 5:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    below = descendants(process.pid)
    recorder = next(
        pid for pid in below if b"gipfel_extension.recorder" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(recorder, signal.SIGKILL)
    killed.touch()
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out.strip()) == (0, "still here")
    (note,) = (job.run / "telemetry").glob("*.recorder.json")
    assert json.loads(note.read_text())["description"] == "SIGKILL"
    assert json.loads(note.read_text())["expected"] is False
    assert rows_of(job.run / "telemetry") >= 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "GIPFEL_JOB is not set"),
        ("{", "does not hold a job"),
        ('{"kind": "server", "command": ["true"], "attribute": 1}', "does not hold a job"),
        ('{"kind": "server", "command": ["true"], "cluster": "../up"}', "does not hold a job"),
        ('{"kind": "server", "command": ["true"], "edf": "nowhere"}', "nowhere"),
        ('{"kind": "server", "command": ["true"], "runtime": "/nowhere"}', "/nowhere"),
        ('{"kind": "server", "command": ["/no/such/program"]}', "/no/such/program"),
    ],
)
def test_a_job_that_can_not_start_reports_it_with_one_line(job, content, said):
    process = job.start_with(content)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    words = [line for line in err.splitlines() if not line.startswith("gipfel: the record")]
    assert len(words) == 1, err
    assert said in words[0]
    assert "Traceback" not in err


def test_a_full_disk_is_reported_with_one_line(job):
    # A file that may not grow is what a full disk and a quota look like to a program.
    spec = JobSpec(kind="server", command=("true",), cluster="here").model_dump_json()
    process = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0; exec "$0" -I -m gipfel_cluster.job', sys.executable],
        env=job.environment | {JOB_VARIABLE: spec}, text=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (process.returncode, process.stderr.count("\n")) == (1, 1)
    assert "The job can't continue on its node: File too large." in process.stderr
