"""Ranks that are killed while they write a checkpoint: is the newest one always whole, and is nothing lost?

Each draw trains a small sharded tensor with gloo ranks, kills a rank in a phase of a checkpoint, looks
at what is left, and resumes with another number of ranks. The final weights must be those of an undisturbed
training.

Cells named ``local`` write to a directory of each of two nodes first (two groups of ranks on this machine).
There, the process that copies is killed (``copier``), the ranks are (``ranks``), both with the node's files
kept (``both``), or lost (``lost``).
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

DRAWS = 200
_ROOT = Path(__file__).resolve().parents[2]
MEASURED = (_ROOT / "widgets" / "gipfel_widgets", _ROOT / "extension" / "gipfel_extension" / "data")

#: Phases before the rename leave the checkpoint before, later ones the new one.
PHASES = {"write": 0, "hash": 0, "manifest": 0, "verify": 0, "rename": 0, "retention": 1}
#: Phases of the process that copies from a node; the value as above, if the ranks are killed as well.
LOCAL_PHASES = {"drain": 0, "manifest": 0, "verify": 0, "rename": 0, "retention": 1}
WHO = ("copier", "ranks", "both", "lost")
STEPS, EVERY = 6, 2
RANKS = (1, 2, 4)
_ROWS = 12
_LIMIT_S = 120.0


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each phase."""
    count = max(1, draws // (len(PHASES) + len(LOCAL_PHASES)))
    found: dict[str, Callable[[], dict[str, Any]]] = {
        phase: partial(measure, phase, seed, count) for phase in PHASES
    }
    return found | {f"local-{phase}": partial(measure_local, phase, seed, count) for phase in LOCAL_PHASES}


def measure_local(phase: str, seed: int, count: int) -> dict[str, Any]:
    """Kill the process that copies checkpoints, the ranks, or both in one of its phases, `count` times."""
    draw = random.Random(f"local {phase} {seed}")
    problems: list[str] = []
    for number in range(count):
        before, after = draw.sample((2, 4), 2) if draw.random() < 0.7 else (4, 4)
        step, who = draw.choice(range(EVERY, STEPS + 1, EVERY)), WHO[(number + seed) % len(WHO)]
        node = draw.randrange(2) if phase == "drain" else 0
        with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
            found = one_local_kill(Path(name), (phase, step, node, who), before, after)
        problems += [
            f"{phase} of step {step}, {who}, node {node}, {before} to {after}: {each}" for each in found
        ]
    return {"kills": count, "problems": problems}


def one_local_kill(folder: Path, kill: tuple[str, int, int, str], before: int, after: int) -> list[str]:
    """Train with files on nodes first, kill, look, resume; return what was wrong."""
    from gipfel_cluster.process.locks import lock_holders  # noqa: PLC0415
    from gipfel_extension.data.checkpoints import find_checkpoints, newest  # noqa: PLC0415

    phase, step, _, who = kill
    directory = folder / "checkpoints"
    codes = run_ranks(folder, before, 1, None, local_kill=kill)
    deadline = time.monotonic() + _LIMIT_S
    # The other node's process waits for what is left on this one, which the next training copies.
    while (
        who != "both"
        and any(lock_holders(each) for each in folder.glob("node-*/*/k"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    problems = [] if (folder / "killed").exists() else ["was not killed"]
    if any(codes) != (who != "copier"):
        problems.append(f"ranks ended with {codes}")
    left = newest(directory)
    expected = {"copier": STEPS, "ranks": step}.get(who, step if LOCAL_PHASES[phase] else step - EVERY)
    if (left.step if left else 0) != expected:
        problems.append(f"newest whole is {left and left.step} instead of {expected}")
    named = [each for each in find_checkpoints(directory, verify=True) if each.path.name[0] == "s"]
    problems += [f"{each.path.name} is {each.state}" for each in named if each.state != "verified"]
    if who == "lost":
        for each in folder.glob("node-*"):
            shutil.rmtree(each)
    codes = run_ranks(folder, after, 1, None, local_kill=("", 0, 0, ""))
    if any(codes):
        return [*problems, f"did not resume: {codes}"]
    # What all ranks had written to their nodes is not lost with the processes.
    resumed = step if who == "both" else expected
    final = json.loads((folder / "final.json").read_text())
    if final != {"resumed": resumed, "weights": undisturbed()}:
        problems.append(f"final state differs: {final}")
    names = sorted(path.name for path in directory.iterdir())
    kept = [f"step-{STEPS}"]
    if who == "lost" and expected == STEPS:
        # Nothing was saved any more, and loading deletes nothing.
        kept = sorted({*kept, *(each.path.name for each in named)})
    if names != [".history.json", ".run.json", *kept]:
        problems.append(f"left {names}")
    files = [each.name for each in folder.glob("node-*/*/*") if each.name.startswith("step-")]
    return problems + ([f"left {files} on nodes"] if files else [])


def measure(phase: str, seed: int, count: int) -> dict[str, Any]:
    """Kill ranks in one phase, `count` times."""
    draw = random.Random(f"{phase} {seed}")
    problems: list[str] = []
    for _ in range(count):
        before, after = draw.sample(RANKS, 2)
        step = draw.choice(range(EVERY, STEPS + 1, EVERY))
        rank = draw.randrange(before) if phase in {"write", "hash"} else 0
        with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
            found = one_kill(Path(name), (phase, step, rank), before, after, draw.choice((1, 2)))
        problems += [
            f"{phase} of step {step}, rank {rank} of {before}, then {after}: {each}" for each in found
        ]
    return {"kills": count, "problems": problems}


def one_kill(folder: Path, kill: tuple[str, int, int], before: int, after: int, keep: int) -> list[str]:
    """Train, kill, look, resume; return what was wrong."""
    from gipfel_extension.data.checkpoints import find_checkpoints, newest  # noqa: PLC0415

    phase, step, rank = kill
    directory = folder / "checkpoints"
    problems = []
    codes = run_ranks(folder, before, keep, kill)
    if codes[rank] != -signal.SIGKILL:
        problems.append(f"was not killed: {codes}")
    left = newest(directory)
    expected = step if PHASES[phase] else step - EVERY
    if (left.step if left else 0) != expected:
        problems.append(f"newest whole is {left and left.step} instead of {expected}")
    half = [each for each in find_checkpoints(directory, verify=True) if each.path.name.startswith("step-")]
    problems += [f"{each.path.name} is {each.state}" for each in half if each.state != "verified"]
    codes = run_ranks(folder, after, keep, None)
    if any(codes):
        return [*problems, f"did not resume: {codes}"]
    final = json.loads((folder / "final.json").read_text())
    if final != {"resumed": expected, "weights": undisturbed()}:
        problems.append(f"final state differs: {final}")
    names = sorted(path.name for path in directory.iterdir())
    steps = list(range(EVERY, STEPS + 1, EVERY))[-keep:]
    if expected == STEPS:
        # Nothing was saved any more, and loading deletes nothing.
        steps = sorted({*steps, *(each.step for each in half)})
    if names != [".history.json", ".run.json", *(f"step-{number}" for number in steps)]:
        problems.append(f"left {names}")
    return problems


def four_two_four() -> list[str]:
    """Train with 4, 2 and 4 ranks on two nodes, of which all processes are killed twice; return problems."""
    with tempfile.TemporaryDirectory(prefix="gipfel-campaign-") as name:
        folder = Path(name)
        for world, kill in ((4, ("rename", 2, 0, "both")), (2, ("drain", 4, 1, "both"))):
            if not any(run_ranks(folder, world, 1, None, local_kill=kill)):
                return [f"{kill} killed nothing"]
            (folder / "killed").unlink()
        codes = run_ranks(folder, 4, 1, None, local_kill=("", 0, 0, ""))
        final = json.loads((folder / "final.json").read_text()) if not any(codes) else codes
    return [] if final == {"resumed": 4, "weights": undisturbed()} else [f"final state: {final}"]


def undisturbed() -> list[list[float]]:
    """Return the weights after all steps, without checkpoints and ranks."""
    import torch  # noqa: PLC0415

    weights = _start(torch)
    for step in range(1, STEPS + 1):
        weights.mul_(0.9).add_(step)
    return weights.tolist()


def _start(torch: Any) -> Any:
    return torch.arange(2.0 * _ROWS).reshape(_ROWS, 2)


def run_ranks(
    folder: Path,
    world: int,
    keep: int,
    kill: tuple[str, int, int] | None,
    *,
    local_kill: tuple[str, int, int, str] | None = None,
) -> list[int]:
    """Train on gloo ranks in forks of this process; return their exit codes, negative for a signal."""
    import torch.distributed.tensor  # noqa: PLC0415, F401 - once, before the forks

    import gipfel_widgets.checkpoints  # noqa: PLC0415, F401

    rendezvous = folder / f"rendezvous-{time.monotonic_ns()}"
    processes = {}
    for rank in range(world):
        process = os.fork()
        if not process:
            code = 1
            try:
                _rank(folder, rendezvous, rank, world, keep, kill, local_kill)
                code = 0
            except BaseException as error:
                if kill is None and not (local_kill and local_kill[0]):
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


def _rank(
    folder: Path,
    rendezvous: Path,
    rank: int,
    world: int,
    keep: int,
    kill: tuple[str, int, int] | None,
    local_kill: tuple[str, int, int, str] | None,
) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    from gipfel_widgets import checkpoint_drain  # noqa: PLC0415
    from gipfel_widgets.checkpoints import Checkpoints  # noqa: PLC0415

    node = rank * 2 // world
    local = "" if local_kill is None else str(folder / f"node-{node}")
    if local_kill and local_kill[0] and local_kill[2] == node:
        spec = json.dumps([*local_kill, str(folder / "killed")])
        checkpoint_drain.COMMAND = (sys.executable, "-W", "ignore", __file__, spec)

    def on_phase(phase: str, step: int) -> None:
        if (phase, step, rank) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world,
        timeout=timedelta(seconds=_LIMIT_S),
    )  # fmt: skip
    weights = distribute_tensor(_start(torch), init_device_mesh("cpu", (world,)), [Shard(0)])
    state = {"weights": weights}
    checkpoints = Checkpoints(folder / "checkpoints", keep=keep, every=EVERY, local=local, on_phase=on_phase)
    resumed = checkpoints.load(state)
    for step in range(resumed + 1, STEPS + 1):
        weights.to_local().mul_(0.9).add_(step)
        if checkpoints.due(step):
            checkpoints.save(step, state)
    checkpoints.close()
    whole = weights.full_tensor()
    if rank == 0:
        (folder / "final.json").write_text(json.dumps({"resumed": resumed, "weights": whole.tolist()}))
    dist.barrier()


def copier(arguments: list[str]) -> int:
    """Run the process that copies checkpoints, and kill it or the ranks in one of its phases, once."""
    from gipfel_widgets.checkpoint_drain import main  # noqa: PLC0415

    spec, *rest = arguments
    wanted, number, _, who, marker = json.loads(spec)
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
