"""Ranks that are killed while they write a checkpoint: is the newest one always whole, and is nothing lost?

Each draw trains a small sharded tensor with four gloo ranks in two groups, which are two nodes with host
names of their own on this machine. It kills a rank in a phase of a checkpoint, looks at what is left, resumes
with two ranks and then with four. The final weights must be those of an undisturbed training.

Cells named ``local`` write to a directory of each node first. There, a rank is killed while it writes
(``rank``), or in a phase of the process that copies: this process (``copier``), the ranks (``ranks``), both
with the node's files kept (``both``), or lost (``lost``).
"""

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

DRAWS = 208
_ROOT = Path(__file__).resolve().parents[2]
MEASURED = (_ROOT / "widgets" / "gipfel_widgets", _ROOT / "extension" / "gipfel_extension" / "data")

#: Phases in which ranks are killed. Those before the rename leave the checkpoint before, later ones the new.
PHASES = {"write": 0, "hash": 0, "manifest": 0, "verify": 0, "rename": 0, "retention": 1}
#: Phases on a node. From ``drain`` on it is the copying process that is in them.
LOCAL_PHASES = {"write": 0, "hash": 0, "drain": 0, "manifest": 0, "verify": 0, "rename": 0, "retention": 1}
WHO = ("copier", "ranks", "both", "lost")
STEPS, EVERY = 8, 2
WORLD, FEWER = 4, 2
_ROWS = 12
_LIMIT_S = 120.0
_CLONE_NEWUTS, _CLONE_NEWUSER = 0x04000000, 0x10000000


@dataclass(frozen=True)
class Setup:
    """One training: its directory, its ranks, and who is killed in which phase of which step."""

    folder: Path
    world: int = WORLD
    keep: int = 1
    #: The last step; another training continues.
    until: int = STEPS
    is_local: bool = False
    phase: str = ""
    step: int = 0
    #: Who is killed: ``rank``, or one of `WHO`; and which rank, or on which node.
    who: str = "rank"
    where: int = 0
    stagger: float | None = None

    def __str__(self) -> str:
        return f"{self.phase} of step {self.step}, {self.who} {self.where}"


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each phase."""
    count = max(1, draws // (len(PHASES) + len(LOCAL_PHASES)))
    found: dict[str, Callable[[], dict[str, Any]]] = {
        phase: partial(measure, phase, seed, count) for phase in PHASES
    }
    local = {f"local-{phase}": partial(measure, phase, seed, count, is_local=True) for phase in LOCAL_PHASES}
    return found | local


def measure(phase: str, seed: int, count: int, *, is_local: bool = False) -> dict[str, Any]:
    """Kill one of four ranks, or the process that copies, in one phase, `count` times."""
    draw = random.Random(f"{phase} {seed} {is_local}")
    problems: list[str] = []
    for number in range(count):
        by_rank = phase in {"write", "hash"}
        with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
            setup = Setup(
                Path(name), is_local=is_local, phase=phase, step=draw.choice((EVERY, 2 * EVERY)),
                who=WHO[(number + seed) % len(WHO)] if is_local and not by_rank else "rank",
                where=draw.randrange(WORLD if by_rank else 2 if phase == "drain" else 1),
                keep=1 if is_local else draw.choice((1, 2)),
            )  # fmt: skip
            problems += [f"{setup}: {each}" for each in one_kill(setup)]
    return {"kills": count, "problems": problems}


def one_kill(setup: Setup) -> list[str]:
    """Train with four ranks, kill, look, resume with two ranks and with four; return what was wrong."""
    from gipfel_cluster.process.locks import lock_holders  # noqa: PLC0415
    from gipfel_extension.data.checkpoints import find_checkpoints, newest  # noqa: PLC0415

    folder, directory, who = setup.folder, setup.folder / "checkpoints", setup.who
    codes = run_ranks(replace(setup, until=setup.step + 1))
    deadline = time.monotonic() + _LIMIT_S
    # The other node's process waits for what is left on this one, which the next training copies.
    while (
        who != "both"
        and any(lock_holders(each) for each in folder.glob("node-*/*/k"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    killed = codes[setup.where] == -signal.SIGKILL if who == "rank" else (folder / "killed").exists()
    problems = [] if killed else [f"was not killed: {codes}"]
    if any(codes) != (who != "copier"):
        problems.append(f"ranks ended with {codes}")
    left = newest(directory)
    is_after = (LOCAL_PHASES if setup.is_local else PHASES)[setup.phase] or who in {"copier", "ranks"}
    expected = setup.step if is_after else setup.step - EVERY
    if (left.step if left else 0) != expected:
        problems.append(f"newest whole is {left and left.step} instead of {expected}")
    named = [each for each in find_checkpoints(directory, verify=True) if each.path.name[0] == "s"]
    problems += [f"{each.path.name} is {each.state}" for each in named if each.state != "verified"]
    if who == "lost":
        for each in folder.glob("node-*"):
            shutil.rmtree(each)
    undisturbed_setup = replace(setup, phase="", step=0)
    # What all ranks had written to their nodes is not lost with the processes.
    resumed = setup.step if who == "both" else expected
    for world, start, until in ((FEWER, resumed, resumed + EVERY + 1), (WORLD, resumed + EVERY, STEPS)):
        codes = run_ranks(replace(undisturbed_setup, world=world, until=until))
        if any(codes):
            return [*problems, f"{world} ranks did not resume: {codes}"]
        final = json.loads((folder / "final.json").read_text())
        if final != {"resumed": start, "weights": undisturbed(until), "nodes": 2}:
            problems.append(f"state of {world} ranks differs: {final}")
    steps = range(EVERY, STEPS + 1, EVERY)[-setup.keep :]
    names = sorted(path.name for path in directory.iterdir())
    if names != [".history.json", ".run.json", *(f"step-{number}" for number in steps)]:
        problems.append(f"left {names}")
    files = [each.name for each in folder.glob("node-*/*/*") if each.name.startswith("step-")]
    return problems + ([f"left {files} on nodes"] if files else [])


def four_two_four() -> list[str]:
    """Train with 4, 2 and 4 ranks on two nodes, of which all processes are killed twice; return problems."""
    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
        setup = Setup(Path(name), is_local=True, who="both")
        for world, phase, step, node in ((4, "rename", 2, 0), (2, "drain", 4, 1)):
            if not any(run_ranks(replace(setup, world=world, phase=phase, step=step, where=node))):
                return [f"{phase} killed nothing"]
            (setup.folder / "killed").unlink()
        codes = run_ranks(setup)
        final = json.loads((setup.folder / "final.json").read_text()) if not any(codes) else codes
    expected = {"resumed": 4, "weights": undisturbed(STEPS), "nodes": 2}
    return [] if final == expected else [f"final state: {final}"]


def write_times(stagger: float) -> list[tuple[float, float]]:
    """Let four ranks on two nodes write one checkpoint; return when each rank began and ended, in seconds."""
    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
        folder = Path(name)
        codes = run_ranks(Setup(folder, until=EVERY + 1, stagger=stagger))
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes}")
        times = [json.loads((folder / f"phases-{rank}.json").read_text()) for rank in range(WORLD)]
    return [(each["write"], each["hash"]) for each in times]


def undisturbed(steps: int) -> list[list[float]]:
    """Return the weights after some steps, without checkpoints and ranks."""
    import torch  # noqa: PLC0415

    weights = _start(torch)
    for step in range(1, steps + 1):
        weights.mul_(0.9).add_(step)
    return weights.tolist()


def _start(torch: Any) -> Any:
    return torch.arange(2.0 * _ROWS).reshape(_ROWS, 2)


def run_ranks(setup: Setup) -> list[int]:
    """Train on gloo ranks in forks of this process; return their exit codes, negative for a signal."""
    # Once, before the forks; the first tensor that is distributed imports _dynamo.
    import torch._dynamo  # noqa: PLC0415
    import torch.distributed.tensor  # noqa: PLC0415, F401

    import gipfel_widgets.checkpoints  # noqa: PLC0415, F401

    rendezvous = setup.folder / f"rendezvous-{time.monotonic_ns()}"
    processes = {}
    for rank in range(setup.world):
        process = os.fork()
        if not process:
            code = 1
            try:
                _rank(setup, rendezvous, rank)
                code = 0
            except BaseException as error:
                if not setup.phase:
                    print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        processes[process] = rank
    return _wait(processes)


def _wait(processes: dict[int, int]) -> list[int]:
    codes: dict[int, int] = {}
    deadline = time.monotonic() + _LIMIT_S
    while len(codes) < len(processes):
        for process, rank in processes.items():
            if rank not in codes:
                done, status = os.waitpid(process, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        # As torchrun does: when one has failed, the others are ended.
        if any(codes.values()) or time.monotonic() > deadline:
            for process, rank in processes.items():
                if rank not in codes:
                    os.kill(process, signal.SIGKILL)
                    codes[rank] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        time.sleep(0.01)
    return [codes[rank] for rank in sorted(codes)]


def _name_host(name: str) -> None:
    """Give this process and its children a host name of their own, as on another node."""
    user, group = os.getuid(), os.getgid()
    flags = _CLONE_NEWUTS | (_CLONE_NEWUSER if user else 0)
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "A process can't get a host name of its own here")
    if user:
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    socket.sethostname(name)
    # Otherwise gloo resolves the name.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _rank(setup: Setup, rendezvous: Path, rank: int) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    from gipfel_widgets import checkpoint_drain  # noqa: PLC0415
    from gipfel_widgets.checkpoints import Checkpoints  # noqa: PLC0415

    folder, node = setup.folder, rank * 2 // setup.world
    _name_host(f"node-{node}")
    if setup.phase and setup.who != "rank" and setup.where == node:
        spec = json.dumps([setup.phase, setup.step, setup.who, str(folder / "killed")])
        checkpoint_drain.COMMAND = (sys.executable, "-W", "ignore", __file__, spec)
    times: dict[str, float] = {}

    def on_phase(phase: str, step: int) -> None:
        times[phase] = time.monotonic()
        if (phase, step, "rank", rank) == (setup.phase, setup.step, setup.who, setup.where):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=setup.world,
        timeout=timedelta(seconds=_LIMIT_S),
    )  # fmt: skip
    weights = distribute_tensor(_start(torch), init_device_mesh("cpu", (setup.world,)), [Shard(0)])
    state = {"weights": weights}
    checkpoints = Checkpoints(
        folder / "checkpoints", keep=setup.keep, every=EVERY, on_phase=on_phase,
        local=str(folder / f"node-{node}") if setup.is_local else "",
        stagger="auto" if setup.stagger is None else setup.stagger,
    )  # fmt: skip
    names: list[Any] = [None] * setup.world
    dist.all_gather_object(names, os.uname().nodename)
    resumed = checkpoints.load(state)
    for step in range(resumed + 1, setup.until + 1):
        weights.to_local().mul_(0.9).add_(step)
        if checkpoints.due(step):
            checkpoints.save(step, state)
            if setup.stagger is not None:
                # Otherwise the end of the training would hurry them.
                checkpoints._saving.result()
    checkpoints.close()
    (folder / f"phases-{rank}.json").write_text(json.dumps(times))
    whole = weights.full_tensor()
    if rank == 0:
        final = {"resumed": resumed, "weights": whole.tolist(), "nodes": len(set(names))}
        (folder / "final.json").write_text(json.dumps(final))
    dist.barrier()


def copier(arguments: list[str]) -> int:
    """Run the process that copies checkpoints, and kill it or the ranks in one of its phases, once."""
    from gipfel_widgets.checkpoint_drain import main  # noqa: PLC0415

    spec, *rest = arguments
    wanted, number, who, marker = json.loads(spec)
    rank = os.getppid()

    def on_phase(phase: str, step: int) -> None:
        if (phase, step) == (wanted, number) and not Path(marker).exists():
            Path(marker).touch()
            # What not all ranks have written may be lost.
            asked = Path(marker).parent.glob(f"node-0/*/step-{step}/request.json")
            while phase == "drain" and not list(asked):
                time.sleep(0.01)
                asked = Path(marker).parent.glob(f"node-0/*/step-{step}/request.json")
            if who != "copier":
                # The other ranks are then ended by what started them.
                os.kill(rank, signal.SIGKILL)
            if who != "ranks":
                os.kill(os.getpid(), signal.SIGKILL)

    return main(rest, on_phase)


def line(document: Mapping[str, Any]) -> str:
    """Return a cell's result as one line."""
    return f"{document['kills']} kills, {len(document['problems'])} problems"


def summary(documents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row of each phase: problems per kill."""
    return [
        {
            "name": f"checkpoints.{phase}", "ours": len(each["problems"]), "peer": each["kills"],
            "unit": "kills", "ratio": len(each["problems"]) / each["kills"], "bound": 0.0,
            "holds": not each["problems"],
        }
        for phase, each in documents.items()
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(copier(sys.argv[1:]))
