"""Processes that ``--kill-holders`` terminates, and those that it must not; a fake nvidia-smi lists them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gipfel_extension.training.launch import DryRun, Launch, launch
from gipfel_extension.training.preflight import Holder, terminate_holders
from gipfel_extension.training.record.spec import LaunchSpec

_LIMIT_S = 120
#: Lists the PIDs in a file whose processes are alive.
_NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-a, Exclusive_Process"; echo "1, GPU-b, Exclusive_Process" ;;
  *)
    while read pid; do
      grep -qs "^State:.[^ZX]" /proc/$pid/status && echo "$pid, GPU-a, python3"
    done < {pids} ;;
esac
exit 0
"""
_SPEC = LaunchSpec(target="train.py", in_job=True, launcher="srun")


class FakeJob:
    """A job with two simulated GPUs, and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "alps-7"
        self.run.mkdir()
        (folder / "train.py").write_text("print('TRAINED', flush=True)\n")
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(_NVIDIA_SMI.format(pids=folder / "pids"))
        program.chmod(0o755)
        self.set_holders()
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {"HOME": str(self.folder), "PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"}
        return {**kept, "GIPFEL_RUN": str(self.run)}

    def set_holders(self, *pids: int) -> None:
        """Set the processes that hold the first GPU."""
        (self.folder / "pids").write_text("".join(f"{pid}\n" for pid in pids))

    def start(self, *argv: str, user: str | None = None, **more: str) -> subprocess.Popen[bytes]:
        environment = {**self.environment, **more}
        process = subprocess.Popen(argv or ("sleep", "1000"), env=environment, user=user, cwd="/")
        self.running.append(process)
        return process

    def kernel(self, notebook: str) -> subprocess.Popen[bytes]:
        """Start a real kernel, and wait until it listens."""
        file = self.folder / "kernel.json"
        argv = (sys.executable, "-m", "ipykernel_launcher", "-f", str(file))
        process = self.start(*argv, JPY_SESSION_NAME=notebook)
        end = time.monotonic() + _LIMIT_S
        while not file.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        return process

    def gipfel(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gipfel_extension.cli", *words]
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=_LIMIT_S,
            check=False,
        )  # fmt: skip

    def holders(self) -> tuple[Holder, ...]:
        """Return the processes that hold GPUs, from a check."""
        made = launch(_SPEC, self.environment, directory=self.folder, dry_run=True)
        assert isinstance(made, DryRun)
        (gpus,) = [each for each in made.preflight if each.check == "gpus"]
        assert gpus.verdict == "fail"
        return gpus.holders


@pytest.fixture
def job(tmp_path: Path) -> Iterator[FakeJob]:
    found = FakeJob(tmp_path)
    yield found
    for each in found.running:
        each.kill()
        each.wait()


def test_rerun_with_kill_holders_terminates_the_kernel_and_starts_the_launch(job: FakeJob) -> None:
    kernel, bystander = job.kernel("/home/ada/big.ipynb"), job.start()
    job.set_holders(kernel.pid)
    who = f"pid {kernel.pid} (the kernel of /home/ada/big.ipynb)"
    refused = job.gipfel("launch", "--in-job", "--launcher", "srun", "--", "train.py")
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert who in last
    assert "`--kill-holders`" in last
    assert "`gipfel rerun 1`" in last
    # A dry run terminates nothing, even with --kill-holders.
    looked = job.gipfel(
        "launch", "--in-job", "--launcher", "srun", "--dry-run", "--kill-holders", "--", "train.py"
    )
    assert looked.returncode == 1
    assert kernel.poll() is None

    done = job.gipfel("rerun", "1", "--kill-holders")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if who in line]
    assert len(said) == 1
    assert "Terminating" in said[0]
    assert kernel.wait(_LIMIT_S) == -15
    assert bystander.poll() is None
    assert done.stdout.strip().rpartition("/")[2] == "1", "a launch that was held back keeps its ID"
    made = Launch.open(job.run / "launches/1")
    assert made.wait(_LIMIT_S) == 0
    assert (made.folder / "rank-0.log").read_text().strip() == "TRAINED"
    # It had never run, so it does not resume.
    assert not made.spec.resume
    assert '"holders"' not in (made.folder / "preflight.json").read_text()


def test_only_processes_of_this_user_and_job_are_terminated(job: FakeJob) -> None:
    ours, other_job = job.start(), job.start(GIPFEL_RUN="/elsewhere/alps-8")
    rank, unknown = job.start(GIPFEL_LAUNCH="/x"), job.start(GIPFEL_RUN="")
    foreign = job.start(user="nobody") if os.geteuid() == 0 else None
    everybody = [each.pid for each in (ours, other_job, rank, unknown, foreign) if each]
    job.set_holders(*everybody, os.getpid(), os.getppid(), 1, 2**22 + 5)
    found = {each.pid: each for each in job.holders()}
    assert {pid for pid, each in found.items() if not each.protection_reason} == {ours.pid}
    assert found[os.getpid()].is_caller
    assert not found[os.getppid()].is_caller
    assert "rank of a launch" in found[rank.pid].protection_reason
    if foreign:
        assert "another user" in found[foreign.pid].protection_reason
    # The command's parent is not terminated.
    job.set_holders(os.getpid(), other_job.pid)
    done = job.gipfel("launch", "--in-job", "--launcher", "srun", "--kill-holders", "--", "train.py")
    assert done.returncode == 1
    assert "it is an ancestor of this process" in done.stderr
    assert "Terminating" not in done.stderr
    assert terminate_holders(tuple(found.values()), _LIMIT_S) == ()
    assert ours.wait(_LIMIT_S) == -15
    assert all(each.poll() is None for each in job.running if each is not ours)


def test_a_reused_pid_is_not_signalled(job: FakeJob) -> None:
    process = job.start()
    job.set_holders(process.pid)
    (holder,) = job.holders()
    assert holder.process is not None
    earlier = holder.process.model_copy(update={"start": holder.process.start - 1})
    assert terminate_holders((holder.model_copy(update={"process": earlier}),), 1) == ()
    assert process.poll() is None


def test_a_process_name_cannot_inject_another_pid(job: FakeJob) -> None:
    bystander = job.start()
    holder = subprocess.Popen(
        [f"x\n{bystander.pid}, GPU-a, y", "1000"], executable="/bin/sleep", env=job.environment, cwd="/"
    )
    job.running.append(holder)
    program = job.folder / "bin" / "nvidia-smi"
    program.write_text(f"""\
#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-a, Exclusive_Process" ;;
  *process_name*) printf '%s, GPU-a, ' {holder.pid}; tr '\\0' '\\n' < /proc/{holder.pid}/cmdline ;;
  *) echo "{holder.pid}, GPU-a" ;;
esac
""")
    (found,) = job.holders()
    assert (found.pid, found.protection_reason) == (holder.pid, "")
    assert found.name == f"x {bystander.pid}, GPU-a, y"


def test_a_process_that_does_not_end_is_named(job: FakeJob) -> None:
    ready = job.folder / "ready"
    stubborn = job.start("sh", "-c", f"trap '' TERM; touch '{ready}'; while :; do sleep 0.2; done")
    end = time.monotonic() + _LIMIT_S
    while not ready.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    job.set_holders(stubborn.pid)
    holders = job.holders()
    assert terminate_holders(holders, 0.5) == holders
    assert stubborn.poll() is None
