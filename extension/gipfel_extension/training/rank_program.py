"""The program of a launch inside the container: a copy of it lies in the launch's directory.

It runs with the image's own Python, 3.9 or newer, and imports the standard library only.

``node``   becomes the launcher's command on this node
``rank``   runs as one rank: writes where it runs, keeps its log, and starts the user's program
``torch.distributed.run``   torchrun, whose rendezvous accepts this launch's own states only
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - quick to import
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_ASKS = frozenset(("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
_LEAKED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_FAMILIES = ("SLURM_", "SLURMD_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_", "PET_", "ACCELERATE_")
_KEPT = ("SLURM_JOB_ID", "SLURM_CONF")
_LOOK_S = 0.2
_TRACE_LINES = 40
_KEY = "GIPFEL_RENDEZVOUS_KEY"


def inside(*parts: str) -> str:
    """Return a path in the launch's directory."""
    return os.path.join(FOLDER, *parts)  # noqa: PTH118


def attempt() -> dict[str, Any]:
    """Return the supervisor's decisions for this attempt."""
    with open(inside("attempt.json"), encoding="utf-8") as file:  # noqa: PTH123
        content: dict[str, Any] = json.load(file)
    return content


def node_index(plan: dict[str, Any], environment: Any) -> int:
    """Return the index of this node among the launch's nodes."""
    name = environment.get("GIPFEL_NODE") or environment.get("SLURMD_NODENAME") or ""
    if name in plan["nodes"]:
        return int(plan["nodes"].index(name))
    return int(environment.get("GIPFEL_NODE_RANK") or environment.get("SLURM_NODEID") or 0)


def run_node() -> None:
    """Become the launcher's command on this node."""
    plan = attempt()
    command = list(plan["commands"][node_index(plan, os.environ)])
    environment = scrubbed(os.environ)
    environment.update(common_environment(plan, environment))
    # One store for all rounds would give ranks that start again the addresses of those before.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # They are for the ranks: a launcher dies of them.
    for name in ("SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    command = filled(command)
    os.execve(command[0], command, environment)  # noqa: S606 - an argv


def run_torchrun(words: list[str]) -> int:
    """Run torchrun with a rendezvous named ``gipfel``: torch's c10d, with authenticated states.

    Anyone who reaches the port can write into c10d's store, and torch unpickles the state from there.
    The key comes from the environment and is removed from it, so that ranks do not inherit it.
    """
    key = os.environ.pop(_KEY, "")
    # The launch's directory: its files must not be mistaken for modules.
    sys.path[:] = [each for each in sys.path if each != FOLDER]
    # Its collections would take a sixth of the time that torch takes to load here, and find next to nothing.
    gc.disable()
    try:
        from torch.distributed import run  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous import RendezvousStateError  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend  # noqa: PLC0415
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler  # noqa: PLC0415

        def create(parameters: Any) -> Any:
            backend, store = create_backend(parameters)
            return create_handler(store, SealedBackend(backend, key, RendezvousStateError), parameters)  # type: ignore[arg-type]

        registry.register("gipfel", create)
    except (ImportError, AttributeError) as error:
        sys.stderr.write(f"gipfel: the rendezvous can't be authenticated ({error}): use --launcher srun\n")
        return 1
    finally:
        gc.enable()
    if not key:
        sys.stderr.write("gipfel: the launch has no key for its rendezvous: start it by `gipfel launch`\n")
        return 1
    try:
        run.main(words)
    except RendezvousStateError as error:
        sys.stderr.write(f"gipfel: {error}\n")
        return 1
    return 0


class SealedBackend:
    """A rendezvous backend that puts an HMAC before each state, and gives out no state without the right one.

    `key` is the launch's own secret; `error` is what is raised for a state that another process wrote.
    """

    def __init__(self, backend: Any, key: str, error: type[Exception]) -> None:
        self._backend = backend
        self._key = key.encode()
        self._error = error

    @property
    def name(self) -> str:
        """Return the name of the backend."""
        return "gipfel"

    def get_state(self) -> tuple[bytes, Any] | None:
        """Return the state and its token; None where there is none yet."""
        found = self._backend.get_state()
        return None if found is None else (self._opened(found[0]), found[1])

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Store a state; return what is stored now, its token, and whether it is this one."""
        found = self._backend.set_state(self._seal(state) + state, token)
        return None if found is None else (self._opened(found[0]), found[1], found[2])

    def _seal(self, state: bytes) -> bytes:
        import hmac  # noqa: PLC0415 - with OpenSSL, which the ranks can do without

        return hmac.digest(self._key, state, "sha256")

    def _opened(self, stored: bytes) -> bytes:
        import hmac  # noqa: PLC0415 - as above

        seal, state = stored[:32], stored[32:]
        if not hmac.compare_digest(seal, self._seal(state)):
            raise self._error(
                "another process wrote into this launch's rendezvous; it was not read: start the launch again"
            )
        return state


def filled(command: list[str]) -> list[str]:
    """Return a command with this interpreter and file, without options that this torch does not know."""
    known = {"{python}": sys.executable, "{program}": os.path.abspath(__file__)}  # noqa: PTH100
    words = [known.get(word, word) for word in command]
    if not os.path.exists(os.path.join(package_folder("torch"), "numa", "binding.py")):  # noqa: PTH110, PTH118
        words = [word for word in words if not word.startswith("--numa-binding")]
    return words


def scrubbed(environment: Any) -> dict[str, str]:
    """Return variables without those of schedulers and launchers around."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name in _LEAKED or name.startswith(_FAMILIES))
    }


def common_environment(plan: dict[str, Any], inherited: Any) -> dict[str, str]:
    """Return what every rank gets on top; what the user has set already stays."""
    record = inside("flight_recorder", "rank_")
    cores = max(1, min(int(plan["cpus"]), len(os.sched_getaffinity(0))) // int(plan["ranks_per_node"]))
    variables = {
        "OMP_NUM_THREADS": str(cores),
        "PYTHONUNBUFFERED": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": record,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    if not _knows_new_names():
        # The flight recorder of older releases, where it is off, or its dumps get lost.
        variables["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"
        variables["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = record
    if inherited.get("GIPFEL_LAUNCH") in (None, FOLDER):  # else they may be those of a launch around
        variables = {name: value for name, value in variables.items() if name not in inherited}
    variables["GIPFEL_LAUNCH"] = FOLDER
    variables.update(_virtual_environment(inherited.get("PATH", os.defpath)))
    if plan.get("checkpoint"):
        variables["GIPFEL_CHECKPOINT"] = plan["checkpoint"]
    variables.update(plan["environment"])
    return variables


def _virtual_environment(path: str) -> dict[str, str]:
    """Return what activates this interpreter's virtual environment for what the ranks start."""
    if sys.prefix == sys.base_prefix:
        return {}
    programs = os.path.join(sys.prefix, "bin")  # noqa: PTH118
    there = programs in path.split(os.pathsep)
    return {"VIRTUAL_ENV": sys.prefix, "PATH": path if there else programs + os.pathsep + path}


def _knows_new_names() -> bool:
    """Return whether torch warns of the flight recorder's older variables."""
    try:
        with open(os.path.join(package_folder("torch"), "version.py"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            found = re.search(r"__version__ = ['\"](\d+)\.(\d+)", file.read())
    except OSError:
        return False
    return found is not None and (int(found[1]), int(found[2])) >= (2, 12)


class Rank:
    """Runs one rank from its start to its end."""

    def __init__(self) -> None:
        self.plan = attempt()
        self.environment = dict(os.environ)
        self.environment.pop(_KEY, None)
        if self.plan["per"] == "rank":
            self.environment.update(_own_identity(self.plan, os.environ))
        self.environment.update(common_environment(self.plan, self.environment))
        self.rank = int(self.environment["RANK"])
        # A program that has run before resumes from its checkpoint, if there is one.
        self.again = bool(self.plan.get("resume")) or os.path.exists(self.file("ranks", ".json", single=True))  # noqa: PTH110
        if self.again:
            self.environment["GIPFEL_RESUME"] = "1"
        self.restart = int(self.environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self.node = self.environment.get("GIPFEL_NODE") or os.uname().nodename
        self.asked = False
        self.started_ns = 0
        self.child: subprocess.Popen[bytes] | None = None
        self.heard = _asked_at("signal")

    def main(self) -> int:
        """Run it; the exit status is that of what the user wants, 128 + n after signal n."""
        log = os.open(
            inside(f"rank-{self.rank}.log"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        if self.again:
            os.write(log, b"--- gipfel: started again ---\n")
        self.started_ns = time.time_ns()
        self.note()
        for name in _PASSED_ON:
            signal.signal(getattr(signal, name), self.pass_on)
        self.environment["GIPFEL_RANK_ERROR"] = self.file("errors", ".json")
        self.child = subprocess.Popen(
            self.command(), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=_prepare_child,  # noqa: PLW1509 - no other thread runs here
        )  # fmt: skip
        os.close(log)
        status = self.follow(self.child)
        if status and not self.asked:
            self.note_failure(status)
        self.note(ended_ns=time.time_ns(), status=status)
        return status if status >= 0 else 128 - status

    def command(self) -> list[str]:
        """Return the argv of this rank."""
        notebook = self.plan.get("notebook")
        if self.rank == 0 and notebook:
            return [*notebook, sys.executable]
        return [sys.executable, inside("run.py")]

    def follow(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the end, and pass on what the supervisor asks of every rank."""
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                number = _asked_at("signal")
                if number != self.heard:
                    self.heard = number
                    if not (self.rank == 0 and self.plan.get("notebook")):
                        child.send_signal(signal.SIGUSR1)

    def pass_on(self, number: int, _frame: Any) -> None:
        """Forward a signal."""
        # A signal to the whole job reaches the program by itself; the supervisor asks each rank once.
        if signal.Signals(number).name in _ASKS:
            self.asked = True
            if self.child is not None:
                self.child.send_signal(number)

    def note(self, **more: Any) -> None:
        """Say where this rank is, for the panel and for who looks for a missing one."""
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
        _write_json(self.file("ranks", ".json", single=True), {**content, **more})

    def note_failure(self, status: int) -> None:
        """Say how it failed, where the program itself could not."""
        path = self.file("errors", ".json")
        if not os.path.exists(path):  # noqa: PTH110
            how = f"was ended by {_signal_name(-status)}" if status < 0 else f"exit status {status}"
            _write_json(path, failure(self.rank, self.node, how, "", ""))

    def file(self, folder: str, suffix: str, single: bool = False) -> str:  # noqa: FBT001, FBT002
        """Return a file of this rank; of this very start of it unless ``single``."""
        os.makedirs(inside(folder), mode=0o700, exist_ok=True)  # noqa: PTH103
        name = f"{self.rank}" if single else f"{self.plan['number']}-{self.restart}-{self.rank}"
        return inside(folder, name + suffix)


def failure(rank: int, node: str, message: str, where: str, trace: str) -> dict[str, Any]:
    """Return the content of a failed rank's error file."""
    return {
        "rank": rank, "node": node, "time_ns": time.time_ns(), "message": message[:2000], "where": where,
        "traceback": trace[-8000:],
    }  # fmt: skip


def package_folder(name: str) -> str:
    """Return the path of a package, or empty, without importing it, which takes seconds with torch."""
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


def _asked_at(name: str) -> int:
    """Return when the supervisor or a user last touched a file of the launch's directory."""
    try:
        return os.stat(inside(name)).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _prepare_child() -> None:
    """Die with the rank's own process, and live through a warning that the program does not listen to."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    for name in _ASKS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    for name in ("SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def _write_json(path: str, content: dict[str, Any]) -> None:
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "w", encoding="utf-8", opener=_private) as file:
            json.dump(content, file)
        os.replace(beside, path)  # noqa: PTH105
    except OSError as error:
        sys.stderr.write(f"gipfel: {path} can't be written: {error.strerror}\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def main(words: list[str]) -> int:
    """Do what the first word names."""
    if words == ["node"]:
        run_node()
    if words[:1] == ["torch.distributed.run"]:
        return run_torchrun(words[1:])
    return Rank().main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
