"""Program of a launch that runs inside the container; the launch's directory has a copy of it.

It runs with the image's Python, 3.9 or newer, and imports only the standard library. Its first argument:

``node``   execute the launcher's command on this node
``rank``   run as one rank: write its record, open its log, and start the user's program
``torch.distributed.run``   run torchrun with a rendezvous that accepts only states of this launch
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slower to import
sys.path.insert(0, FOLDER)
files = importlib.import_module("gipfel_rank_files")
sys.path.remove(FOLDER)
_HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_STOP_SIGNALS = frozenset(("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
#: Variables of an outer launcher, which must not reach the ranks; `_FAMILIES` are prefixes of such variables.
_LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_FAMILIES = ("SLURM_", "SLURMD_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_", "PET_", "ACCELERATE_")
_KEPT = ("SLURM_JOB_ID", "SLURM_CONF")
_LOOK_S = 0.2
_KEY = "GIPFEL_RENDEZVOUS_KEY"
_STACKS = "stacks.json"
_MAX_TOKEN_CHARACTERS = 8192


def node_index(plan: dict[str, Any], environment: Any) -> int:
    """Return the index of this node among the launch's nodes."""
    name = environment.get("GIPFEL_NODE") or environment.get("SLURMD_NODENAME") or ""
    if name in plan["nodes"]:
        return int(plan["nodes"].index(name))
    return int(environment.get("GIPFEL_NODE_RANK") or environment.get("SLURM_NODEID") or 0)


def run_node() -> None:
    """Replace this process by the launcher's command on this node."""
    plan = files.attempt()
    command = list(plan["commands"][node_index(plan, os.environ)])
    environment = without_launcher_variables(os.environ)
    environment.update(common_environment(plan, environment))
    # With one store for all rounds, restarted ranks would get the addresses of earlier ranks.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # These signals are for the ranks, and would end the launcher.
    for name in ("SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    command = resolve_command(command)
    os.execve(command[0], command, environment)  # noqa: S606 - no shell


def resolve_command(command: list[str]) -> list[str]:
    """Return a command with this interpreter and file, without options that this torch does not support."""
    known = {"{python}": sys.executable, "{program}": os.path.abspath(__file__)}  # noqa: PTH100
    arguments = [known.get(argument, argument) for argument in command]
    if not os.path.exists(os.path.join(package_folder("torch"), "numa", "binding.py")):  # noqa: PTH110, PTH118
        arguments = [argument for argument in arguments if not argument.startswith("--numa-binding")]
    return arguments


def without_launcher_variables(environment: Any) -> dict[str, str]:
    """Return environment variables without those of the scheduler and of outer launchers."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name in _LAUNCHER_VARIABLES or name.startswith(_FAMILIES))
    }


def common_environment(plan: dict[str, Any], inherited: Any) -> dict[str, str]:
    """Return the variables that every rank gets, except those that the user has set."""
    record = files.inside("flight_recorder", "rank_")
    cores = max(1, min(int(plan["cpus"]), len(os.sched_getaffinity(0))) // int(plan["ranks_per_node"]))
    variables = {
        "OMP_NUM_THREADS": str(cores),
        "PYTHONUNBUFFERED": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": record,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    if not _has_new_variable_names():
        # Older releases read these variables for their flight recorder.
        variables |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": record}
    if inherited.get("GIPFEL_LAUNCH") in (None, FOLDER):  # otherwise an outer launch may have set them
        variables = {name: value for name, value in variables.items() if name not in inherited}
    own = {
        "GIPFEL_LAUNCH": FOLDER,
        "GIPFEL_STEP_HOOKS": "0" if plan.get("step_hooks") is False else "",
        "GIPFEL_CHECKPOINT": plan.get("checkpoint"),
        "GIPFEL_FAILURE_S": f"{plan['failure_s']:.0f}" if plan.get("failure_s") else "",
    }
    return {
        **variables,
        **{name: value for name, value in own.items() if value},
        **_virtual_environment(inherited.get("PATH", os.defpath)),
        **plan["environment"],
    }


def tracking_variables(plan: dict[str, Any], environment: Any) -> dict[str, str]:
    """Return the variables with which a program logs to its launch's MLflow run, with the server's token.

    Empty if the program's own variables name a server or a run.
    """
    if any(environment.get(name) for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID")):
        return {}
    variables = dict(plan.get("tracking") or {})
    file = variables.pop("GIPFEL_TRACK_TOKEN_FILE", "")
    if file:
        try:
            with open(os.path.expanduser(file), opener=_open_regular) as content:  # noqa: PTH111
                variables["MLFLOW_TRACKING_TOKEN"] = content.read(_MAX_TOKEN_CHARACTERS).strip()
        except (OSError, ValueError):
            pass
    return variables


def _open_regular(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _virtual_environment(path: str) -> dict[str, str]:
    """Return the variables that activate this interpreter's virtual environment; empty without one."""
    if sys.prefix == sys.base_prefix:
        return {}
    programs = os.path.join(sys.prefix, "bin")  # noqa: PTH118
    active = programs in path.split(os.pathsep)
    return {"VIRTUAL_ENV": sys.prefix, "PATH": path if active else programs + os.pathsep + path}


def _has_new_variable_names() -> bool:
    """Return whether this torch has new names for the flight recorder's variables."""
    try:
        with open(os.path.join(package_folder("torch"), "version.py"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            found = re.search(r"__version__ = ['\"](\d+)\.(\d+)", file.read())
    except OSError:
        return False
    return found is not None and (int(found[1]), int(found[2])) >= (2, 12)


class Rank:
    """One rank, from its start to its end."""

    def __init__(self) -> None:
        self.plan = files.attempt()
        self.environment = dict(os.environ)
        self.environment.pop(_KEY, None)
        if self.plan["per"] == "rank":
            self.environment.update(_own_identity(self.plan, os.environ))
        self.environment.update(common_environment(self.plan, self.environment))
        self.rank = int(self.environment["RANK"])
        if self.rank == 0:
            self.environment.update(tracking_variables(self.plan, self.environment))
        # A program that has already run resumes from its checkpoint.
        earlier_record = self.file("ranks", ".json", single=True)
        self.resumes = bool(self.plan.get("resume")) or os.path.exists(earlier_record)  # noqa: PTH110
        if self.resumes:
            self.environment["GIPFEL_RESUME"] = "1"
        self.restart = int(self.environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self.node = self.environment.get("GIPFEL_NODE") or os.uname().nodename
        self.stop_requested = False
        self.started_ns = 0
        self.child: subprocess.Popen[bytes] | None = None
        self.signalled_ns = files.touched_ns("signal")
        self.stacks_ns = files.touched_ns(_STACKS)

    def main(self) -> int:
        """Run the rank and return the exit status of the user's program; 128 + n after signal n."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(files.inside(f"rank-{self.rank}.log"), flags, 0o600)
        if self.resumes:
            os.write(log, b"--- gipfel: restarted ---\n")
        self.started_ns = time.time_ns()
        self.write_record()
        for name in _HANDLED:
            signal.signal(getattr(signal, name), self.on_signal)
        self.environment["GIPFEL_RANK_ERROR"] = self.file("errors", ".json")
        self.child = subprocess.Popen(
            self.command(), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=_prepare_child,  # noqa: PLW1509 - this process has no other thread
        )  # fmt: skip
        os.close(log)
        status = self.follow(self.child)
        # A request to stop may arrive before the end of a killed program is noticed.
        if status and (not self.stop_requested or status == -signal.SIGKILL):
            self.write_failure(status)
        self.write_record(ended_ns=time.time_ns(), status=status)
        files.load("rank_writes").wait_for_drains(FOLDER)
        return status if status >= 0 else 128 - status

    def command(self) -> list[str]:
        """Return the argv of this rank."""
        notebook = self.plan.get("notebook") if self.rank == 0 else None
        return [*notebook, sys.executable] if notebook else [sys.executable, files.inside("run.py")]

    def follow(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the end; send SIGUSR1 when the supervisor requests a checkpoint of every rank."""
        world = int(self.environment.get("WORLD_SIZE") or 1)
        after_s = float(self.plan.get("hang_after_s", 300.0))
        writes = files.load("rank_writes").WriteWatch(FOLDER, self.rank, world, after_s)
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                writes.look(child.pid)
                touched_ns = files.touched_ns("signal")
                if touched_ns != self.signalled_ns:
                    self.signalled_ns = touched_ns
                    if not (self.rank == 0 and self.plan.get("notebook")):
                        child.send_signal(signal.SIGUSR1)
                touched_ns = files.touched_ns(_STACKS)
                if touched_ns != self.stacks_ns:
                    self.stacks_ns = touched_ns
                    self.answer_stacks()

    def answer_stacks(self) -> None:
        """Carry out a request for stacks of this rank's program, if it includes this rank."""
        try:
            files.load("rank_looks").look_from_outside(FOLDER, self.rank)
        except OSError as error:  # the training must not depend on it
            sys.stderr.write(f"gipfel: a request for stacks failed: {error}\n")

    def on_signal(self, number: int, _frame: Any) -> None:
        """Forward a signal that requests the end; ignore others."""
        # SIGUSR1 to the job also reaches the program directly, and `follow` sends it once for the supervisor.
        if signal.Signals(number).name in _STOP_SIGNALS:
            self.stop_requested = True
            if self.child is not None:
                self.child.send_signal(number)

    def write_record(self, **more: Any) -> None:
        """Write node, process and GPUs of this rank, for the panel and the flight recorder's report."""
        content = {
            "rank": self.rank,
            "local_rank": int(self.environment.get("LOCAL_RANK") or 0),
            "node": self.node,
            "pid": os.getpid(),
            "gpus": self.environment.get("CUDA_VISIBLE_DEVICES"),
            "attempt": self.plan["number"],
            "restart": self.restart,
            "world": int(self.environment.get("WORLD_SIZE") or 0),
            "started_ns": self.started_ns,
        }
        files.write_json(self.file("ranks", ".json", single=True), {**content, **more})

    def write_failure(self, status: int) -> None:
        """Write how the rank failed, unless the program has done so."""
        path = self.file("errors", ".json")
        if not os.path.exists(path):  # noqa: PTH110
            message = f"was ended by {_signal_name(-status)}" if status < 0 else f"exit status {status}"
            content = {"rank": self.rank, "node": self.node, "time_ns": time.time_ns(), "message": message}
            files.write_json(path, {**content, "location": "", "traceback": ""})

    def file(self, folder: str, suffix: str, single: bool = False) -> str:  # noqa: FBT001, FBT002
        """Return the path of a file of this rank; its name has the attempt and restart unless ``single``."""
        os.makedirs(files.inside(folder), mode=0o700, exist_ok=True)  # noqa: PTH103
        name = f"{self.rank}" if single else f"{self.plan['number']}-{self.restart}-{self.rank}"
        return str(files.inside(folder, name + suffix))


def package_folder(name: str) -> str:
    """Return the path of a package, empty if it is not installed; importing torch would take seconds."""
    import importlib.machinery  # noqa: PLC0415

    found = importlib.machinery.PathFinder.find_spec(name)
    if found is None:
        return ""
    return next(iter(found.submodule_search_locations or ()), found.origin or "")


def _own_identity(plan: dict[str, Any], environment: Any) -> dict[str, str]:
    rank = environment.get("GIPFEL_TASK") or environment.get("SLURM_PROCID") or "0"
    local = environment.get("GIPFEL_LOCAL_TASK") or environment.get("SLURM_LOCALID") or "0"
    return {
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": str(len(plan["nodes"]) * int(plan["ranks_per_node"])),
        "LOCAL_WORLD_SIZE": str(plan["ranks_per_node"]),
        "GROUP_RANK": str(node_index(plan, environment)),
        "NODE_RANK": str(node_index(plan, environment)),
        "MASTER_ADDR": plan["addresses"][0],
        "MASTER_PORT": str(plan["port"]),
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _prepare_child() -> None:
    """Make the child end with this process, and ignore warning signals unless the program handles them."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    for name in _STOP_SIGNALS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    for name in ("SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def main(arguments: list[str]) -> int:
    """Run the command in the first argument."""
    if arguments == ["node"]:
        run_node()
    if arguments[:1] == ["torch.distributed.run"]:
        return int(files.load("torchrun").run_torchrun(arguments[1:]))
    return Rank().main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
