"""Steps on a machine without Slurm and through a job's broker, and the arguments of srun."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from broker_jobs import running_broker, until, write_edf

from gipfel_cluster.model import PYTHON, GipfelError
from gipfel_cluster.process.tree import Process, descendants
from gipfel_cluster.runtime import Runtime
from gipfel_cluster.steps import IMAGE_PYTHON, StepJob, StepSpec, start_step
from gipfel_cluster.steps.handle import supervisor_arguments
from gipfel_cluster.steps.node import visible_gpus
from gipfel_cluster.steps.spec import StepPlan
from gipfel_cluster.steps.tasks import srun_arguments, without_launcher_variables

_SHOW = """
import os, sys
names = "GIPFEL_TASK GIPFEL_TASKS GIPFEL_LOCAL_TASK RANK SLURM_PROCID MASTER_ADDR WHERE MINE"
print(*(os.environ.get(name, "-") for name in names.split()), flush=True)
sys.exit(int(os.environ["GIPFEL_TASK"]))
"""
_TRAPPING = "trap 'echo told' USR1; trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.1; done"


def _environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | {"RANK": "7", "MASTER_ADDR": "elsewhere", "SLURM_PROCID": "9", "PMI_RANK": "9"} | more


def _log(folder: Path, name: str) -> str:
    path = folder / name
    return path.read_text() if path.exists() else ""


def test_local_tasks_get_their_rank_but_no_launcher_variables(tmp_path: Path) -> None:
    folder = tmp_path / "step"
    spec = StepSpec(
        command=(IMAGE_PYTHON, "-c", _SHOW), folder=str(folder), tasks_per_node=3, environment={"MINE": "a b"}
    )
    step = start_step(spec, _environment())
    assert step.wait(60) == 2
    assert [each.rank for each in step.tasks] == [0, 1, 2]
    assert (step.state.phase, step.state.status) == ("ended", 2)
    assert step.step_id.startswith("local-")
    for rank in range(3):
        assert _log(folder, f"rank-{rank}.log") == f"{rank} 3 {rank} - - - - a b\n"


def test_a_step_receives_signals_and_stops_with_all_its_processes(tmp_path: Path) -> None:
    spec = StepSpec(command=("sh", "-c", _TRAPPING), folder=str(tmp_path), name="long")
    with start_step(spec, _environment()) as step:
        until(lambda: "ready" in _log(tmp_path, "node-0.log"))
        assert step.poll() is None
        step.signal(signal.SIGUSR1)
        until(lambda: "told" in _log(tmp_path, "node-0.log"))
        supervisor = step.state.supervisor
        assert supervisor is not None
        pids = descendants(supervisor.pid)
        assert step.stop() == 7
    assert "asked" in _log(tmp_path, "node-0.log")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    ignores_term = spec.model_copy(
        update={"command": ("sh", "-c", "trap '' TERM; echo ignoring; sleep 1000"), "grace_s": 0.2}
    )
    with start_step(ignores_term, _environment()) as step:
        until(lambda: "ignoring" in _log(tmp_path, "node-0.log"))
    assert step.poll() == 137


#: In a separate process, because forking needs a single thread.
_PROGRAM = """
import json, os, signal, sys
from gipfel_cluster.process.fork import allow_forks
from gipfel_cluster.regular_files import read_regular
from gipfel_cluster.steps import StepSpec, start_step
allow_forks()
signal.signal(signal.SIGUSR2, lambda *_: None)
held = open(sys.argv[1] + "/held", "w")
code = "trap 'echo $WHERE ${MY_TOKEN-none}; exit 7' USR1; echo ready; while :; do sleep 0.1; done"
environment = {"PATH": os.environ["PATH"], "HOME": sys.argv[1], "WHERE": "there", "MY_TOKEN": "secret"}
with start_step(StepSpec(command=("sh", "-c", code), folder=sys.argv[1]), environment) as step:
    while step.wait(0.05) is None and not os.path.exists(sys.argv[1] + "/node-0.log"):
        pass
    while not os.path.getsize(sys.argv[1] + "/node-0.log"):
        assert step.poll() is None
    pid = step.state.supervisor.pid
    command = open(f"/proc/{pid}/cmdline").read().split("\\0")
    files = [os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")]
    maps = open("/proc/self/maps").read().splitlines(), open(f"/proc/{pid}/maps").read().splitlines()
    same = {line.split()[0] for line in maps[0] if "pydantic_core" in line} <= {l.split()[0] for l in maps[1]}
    children = open("/proc/self/task/%d/children" % os.getpid()).read().split()
    step.signal(signal.SIGUSR1)
    status = step.wait(60)
print(json.dumps([command[:4], files, same, children == [str(pid)], status]))
"""


def test_a_gipfel_program_forks_the_supervisor_of_its_steps(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    command, files, same, child, status = json.loads(done.stdout)
    assert command == list(supervisor_arguments())
    assert not [each for each in files if each.startswith(str(tmp_path))]
    assert (same, child, status) == (True, True, 7)
    assert _log(tmp_path, "node-0.log").splitlines() == ["ready", "there none"]
    unused = subprocess.run(supervisor_arguments(), stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert (unused.returncode, unused.stderr) == (0, b"")


def _named(word: str, above: int) -> int | None:
    """Return the descendant of a process that has a word among its arguments."""
    lines = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in descendants(above)}
    return next((each for each, line in lines.items() if word.encode() in line), None)


def test_a_module_runs_in_a_fork_of_its_task_and_ends_with_it(tmp_path: Path) -> None:
    command = (PYTHON, "-I", "-m", "http.server", "--bind=127.0.0.1", "0")
    environment = _environment()
    for number, fork in enumerate((True, False)):
        folder = tmp_path / str(number)
        spec = StepSpec(command=command, folder=str(folder), environment={"MINE": "x"}, fork=fork)
        with start_step(spec, environment) as step:
            until(lambda step=step: step.tasks)
            task = step.tasks[0].pid
            child = until(lambda task=task: _named("http.server", task))
            own, others = (Path("/proc", str(pid), "auxv").read_bytes() for pid in (child, task))
            # Only a new program has another stack.
            assert (own == others) is fork
            os.kill(task, signal.SIGKILL)
            until(lambda child=child: Process.of(child) is None)
            assert step.wait(60) == 128 + signal.SIGKILL


def test_time_limit_kill_on_bad_exit_and_errors(tmp_path: Path) -> None:
    late = StepSpec(command=("sleep", "1000"), folder=str(tmp_path), time_limit_s=0.2)
    assert start_step(late, _environment()).wait(60) == 124
    fails = 'test "$GIPFEL_TASK" = 1 && exit 5; sleep 1000'
    together = StepSpec(
        command=("sh", "-c", fails),
        folder=str(tmp_path),
        tasks_per_node=2,
        kill_on_bad_exit=True,
        name="both",
    )
    assert start_step(together, _environment()).wait(60) == 143
    lost = StepSpec(command=("true",), folder=str(tmp_path), edf="nowhere", name="lost")
    step = start_step(lost, _environment(HOME=str(tmp_path)))
    assert step.wait(60) == 125
    assert "there is no EDF of this name" in _log(tmp_path, "node-0.log")
    absent = start_step(
        StepSpec(command=("true",), folder=str(tmp_path), nodes=("other",), name="absent"), _environment()
    )
    assert absent.wait(60) == 1
    assert "Without Slurm, a step can run on this machine only" in absent.state.problem
    with pytest.raises(GipfelError, match="can't be created"):
        start_step(StepSpec(command=("true",), folder="/proc/none"), _environment())


_CLIENT = """
import sys, time
from gipfel_cluster.steps import StepSpec, start_step
step = start_step(StepSpec.model_validate_json(sys.argv[1]))
print(step.wait(float(sys.argv[2])), flush=True)
time.sleep(float(sys.argv[3]))
"""


def test_a_container_starts_a_step_through_the_broker_and_ends_it(tmp_path: Path) -> None:
    write_edf(tmp_path, "other")
    run = tmp_path / "run"
    run.mkdir()
    with running_broker(tmp_path) as broker:
        inside = _environment(GIPFEL_SOCKETS=broker.sockets, GIPFEL_RUN=str(run), GIPFEL_ENGINE="bubblewrap")

        def start_client(spec: StepSpec, *words: str) -> subprocess.Popen[str]:
            argv = [sys.executable, "-c", _CLIENT, spec.model_dump_json(), *words]
            return subprocess.Popen(
                argv, env=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )

        shown = StepSpec(
            command=(IMAGE_PYTHON, "-c", _SHOW), folder=str(run / "a"), edf="other", tasks_per_node=2
        )
        done = start_client(shown, "60", "0")
        output, errors = done.communicate(timeout=90)
        assert output == "1\n", errors
        assert _log(run / "a", "rank-1.log") == "1 2 1 - - - the other -\n"
        trapping = StepSpec(command=("sh", "-c", _TRAPPING), folder=str(run / "b"))
        client = start_client(trapping, "0", "1000")
        until(lambda: "ready" in _log(run / "b", "node-0.log"))
        client.kill()
        client.communicate(timeout=30)
        until(lambda: "asked" in _log(run / "b", "node-0.log"))
        hidden = start_client(shown.model_copy(update={"folder": "/proc/self"}), "1", "0")
        assert "does not see" in hidden.communicate(timeout=60)[1]


def _plan(**more: object) -> StepPlan:
    setting = StepJob(
        home="/home/ada",
        runtime=Runtime.from_current_interpreter(),
        slurm_job="12",
        nodes=("n1", "n2"),
        cpus=8,
    )
    spec = StepSpec.model_validate({"command": ("train",), "folder": "/runs/a%b", **more})
    return StepPlan(spec=spec, job=setting, folder="/runs/a%b")


def test_srun_gets_all_options_explicitly() -> None:
    argv = srun_arguments(_plan(tasks_per_node=4), ("python", "x"))
    for word in (
        "--jobid=12", "--overlap", "--nodes=2", "--nodelist=n1,n2", "--ntasks=8", "--ntasks-per-node=4",
        "--cpus-per-task=2", "--output=/runs/a%%b/rank-%t.log", "--kill-on-bad-exit=0", "--no-kill",
    ):  # fmt: skip
        assert word in argv
    assert argv[-2:] == ("python", "x")
    assert "--overcommit" in srun_arguments(_plan(tasks_per_node=9), ())
    assert "--nodelist=n2" in srun_arguments(_plan(nodes=("n2",), kill_on_bad_exit=True), ())
    kept = without_launcher_variables(
        {"PATH": "p", "SLURM_CONF": "c", "SLURM_NTASKS": "3", "RANK": "1", "OMPI_COMM": "x"}
    )
    assert kept == {"PATH": "p", "SLURM_CONF": "c"}


def test_gpus_are_indices_among_those_of_the_job() -> None:
    granted = {"CUDA_VISIBLE_DEVICES": "2,3,GPU-5"}
    assert visible_gpus(_plan(), "n1", granted) == ("2", "3", "GPU-5")
    assert visible_gpus(_plan(gpus_per_node=1), "n1", granted) == ("2",)
    assert visible_gpus(_plan(gpus={"n1": (2, 0)}), "n1", granted) == ("GPU-5", "2")
    assert visible_gpus(_plan(), "n1", {}) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": ()}, {"command": ("",)}, {"command": ("a\0b",)}, {"folder": "relative"},
        {"folder": "/a\nb"}, {"nodes": ("--exclusive",)}, {"nodes": ("a,b",)}, {"name": "../x"},
        {"environment": {"SLURM_CONF": "x"}},
        {"environment": {"A B": "x"}}, {"tasks_per_node": 0}, {"more": 1},
    ],
)  # fmt: skip
def test_an_invalid_step_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        _plan(**wrong)
