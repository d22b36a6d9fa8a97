"""Ranks that are killed while they write a checkpoint: is the newest one always whole, and is nothing lost?

Each draw trains a small sharded tensor with gloo ranks, kills a rank in a phase of a checkpoint, looks
at what is left, and resumes with another number of ranks. The final weights must be those of an undisturbed
training.
"""

import json
import os
import random
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
STEPS, EVERY = 6, 2
RANKS = (1, 2, 4)
_ROWS = 12
_LIMIT_S = 120.0


def cells(seed: int, draws: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurement of each phase."""
    count = max(1, draws // len(PHASES))
    return {phase: partial(measure, phase, seed, count) for phase in PHASES}


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


def undisturbed() -> list[list[float]]:
    """Return the weights after all steps, without checkpoints and ranks."""
    import torch  # noqa: PLC0415

    weights = _start(torch)
    for step in range(1, STEPS + 1):
        weights.mul_(0.9).add_(step)
    return weights.tolist()


def _start(torch: Any) -> Any:
    return torch.arange(2.0 * _ROWS).reshape(_ROWS, 2)


def run_ranks(folder: Path, world: int, keep: int, kill: tuple[str, int, int] | None) -> list[int]:
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
                _rank(folder, rendezvous, rank, world, keep, kill)
                code = 0
            except BaseException as error:
                if kill is None:
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
    folder: Path, rendezvous: Path, rank: int, world: int, keep: int, kill: tuple[str, int, int] | None
) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    from gipfel_widgets.checkpoints import Checkpoints  # noqa: PLC0415

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
    checkpoints = Checkpoints(folder / "checkpoints", keep=keep, every=EVERY, on_phase=on_phase)
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
