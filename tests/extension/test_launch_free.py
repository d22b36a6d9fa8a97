"""GPUs that others hold: whom ``--kill-holders`` ends and whom never; real processes, named by a stand-in."""

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
#: Names those of the numbers in a file that are processes still.
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


class Place:
    """A job with two GPUs in name only, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "alps-7"
        self.run.mkdir()
        (folder / "train.py").write_text("print('TRAINED', flush=True)\n")
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(_NVIDIA_SMI.format(pids=folder / "pids"))
        program.chmod(0o755)
        self.held()
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {"HOME": str(self.folder), "PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"}
        return {**kept, "GIPFEL_RUN": str(self.run)}

    def held(self, *pids: int) -> None:
        """Say who holds the first GPU."""
        (self.folder / "pids").write_text("".join(f"{pid}\n" for pid in pids))

    def start(self, *argv: str, user: str | None = None, **more: str) -> subprocess.Popen[bytes]:
        environment = {**self.environment, **more}
        process = subprocess.Popen(argv or ("sleep", "1000"), env=environment, user=user, cwd="/")
        self.running.append(process)
        return process

    def kernel(self, notebook: str) -> subprocess.Popen[bytes]:
        """A real kernel, once it listens."""
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
        """Return who holds GPUs, as a check says."""
        made = launch(_SPEC, self.environment, directory=self.folder, dry_run=True)
        assert isinstance(made, DryRun)
        (gpus,) = [each for each in made.preflight if each.check == "gpus"]
        assert gpus.verdict == "fail"
        return gpus.holders


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    for each in found.running:
        each.kill()
        each.wait()


def test_a_kernel_is_named_then_ended_and_what_was_kept_back_goes_on(place: Place) -> None:
    kernel, bystander = place.kernel("/home/ada/big.ipynb"), place.start()
    place.held(kernel.pid)
    who = f"pid {kernel.pid} (the kernel of /home/ada/big.ipynb)"
    refused = place.gipfel("launch", "--in-job", "--launcher", "srun", "--", "train.py")
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert who in last
    assert "`--kill-holders`" in last
    assert "`gipfel rerun 1`" in last
    # A check ends nothing, whatever is asked.
    looked = place.gipfel(
        "launch", "--in-job", "--launcher", "srun", "--dry-run", "--kill-holders", "--", "train.py"
    )
    assert looked.returncode == 1
    assert kernel.poll() is None

    done = place.gipfel("rerun", "1", "--kill-holders")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if who in line]
    assert len(said) == 1
    assert "Terminating" in said[0]
    assert kernel.wait(_LIMIT_S) == -15
    assert bystander.poll() is None
    assert done.stdout.strip().rpartition("/")[2] == "1", "what was held back continues under its ID"
    made = Launch.open(place.run / "launches/1")
    assert made.wait(_LIMIT_S) == 0
    assert (made.folder / "rank-0.log").read_text().strip() == "TRAINED"
    # It had never run: it is not told that it resumes.
    assert not made.spec.resume
    assert "holders" not in (made.folder / "preflight.json").read_text()


def test_only_processes_of_this_user_and_job_are_ended(place: Place) -> None:
    ours, other_job = place.start(), place.start(GIPFEL_RUN="/elsewhere/alps-8")
    rank, unknown = place.start(GIPFEL_LAUNCH="/x"), place.start(GIPFEL_RUN="")
    foreign = place.start(user="nobody") if os.geteuid() == 0 else None
    everybody = [each.pid for each in (ours, other_job, rank, unknown, foreign) if each]
    place.held(*everybody, os.getpid(), os.getppid(), 1, 2**22 + 5)
    found = {each.pid: each for each in place.holders()}
    assert {pid for pid, each in found.items() if not each.protected} == {ours.pid}
    assert found[os.getpid()].is_caller
    assert not found[os.getppid()].is_caller
    assert "rank of a launch" in found[rank.pid].protected
    if foreign:
        assert "another user" in found[foreign.pid].protected
    # The command is started by this process, which it leaves alone.
    place.held(os.getpid(), other_job.pid)
    done = place.gipfel("launch", "--in-job", "--launcher", "srun", "--kill-holders", "--", "train.py")
    assert done.returncode == 1
    assert "it is an ancestor of this process" in done.stderr
    assert "Terminating" not in done.stderr
    assert terminate_holders(tuple(found.values()), _LIMIT_S) == ()
    assert ours.wait(_LIMIT_S) == -15
    assert all(each.poll() is None for each in place.running if each is not ours)


def test_a_number_that_is_another_process_by_now_is_left_alone(place: Place) -> None:
    process = place.start()
    place.held(process.pid)
    (holder,) = place.holders()
    assert holder.process is not None
    earlier = holder.process.model_copy(update={"start": holder.process.start - 1})
    assert terminate_holders((holder.model_copy(update={"process": earlier}),), 1) == ()
    assert process.poll() is None


def test_the_name_of_a_process_points_at_no_other(place: Place) -> None:
    bystander = place.start()
    holder = subprocess.Popen(
        [f"x\n{bystander.pid}, GPU-a, y", "1000"], executable="/bin/sleep", env=place.environment, cwd="/"
    )
    place.running.append(holder)
    program = place.folder / "bin" / "nvidia-smi"
    program.write_text(f"""\
#!/bin/sh
case "$1" in
  --query-gpu=*) echo "0, GPU-a, Exclusive_Process" ;;
  *process_name*) printf '%s, GPU-a, ' {holder.pid}; tr '\\0' '\\n' < /proc/{holder.pid}/cmdline ;;
  *) echo "{holder.pid}, GPU-a" ;;
esac
""")
    (found,) = place.holders()
    assert (found.pid, found.protected) == (holder.pid, "")
    assert found.name == f"x {bystander.pid}, GPU-a, y"


def test_a_process_that_does_not_end_is_named(place: Place) -> None:
    ready = place.folder / "ready"
    stubborn = place.start("sh", "-c", f"trap '' TERM; touch '{ready}'; while :; do sleep 0.2; done")
    end = time.monotonic() + _LIMIT_S
    while not ready.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    place.held(stubborn.pid)
    holders = place.holders()
    assert terminate_holders(holders, 0.5) == holders
    assert stubborn.poll() is None
