"""What a checkpoint costs training: asynchronous and staggered writing beside ``torch.save`` with fsync.

Two gloo ranks train as ranks with GPUs do: a step waits for a device, here a timer, and then for the other
rank. In turns a checkpoint is written by ``torch.save`` while training stands still, in the background, and
over a directory of the node at a limited rate; training continues until it is complete. Rows: seconds lost
for each checkpoint, as a share of ``STEPS`` usual steps, beside the share of ``torch.save``; and the cost
that the steps of the recorded run show beside the ranks' own timers (the larger over the smaller).
``build/checkpoint-dips.png`` shows it. README's gallery
has a run of the kinds `RECORDED`.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gipfel_extension.job.checkpoints import CheckpointReport, checkpoint_figure, read_checkpoints
from gipfel_extension.telemetry.figures.image import static_image

#: Seconds lost and usual seconds of a step, for each checkpoint of each kind.
Timers = dict[str, list[tuple[float, float]]]

ROUNDS, STEPS = 5, 120
KINDS = ("torch.save", "asynchronous", "staggered")
#: Kinds that `Checkpoints` writes, and so records; the first one while training stands still.
RECORDED = ("blocking", "asynchronous", "staggered")
BOUND_SHARE, BOUND_COST = 1.0, 1.05
_IMAGE = Path(__file__).resolve().parents[2] / "build" / "checkpoint-dips.png"
_WORLD = 2
#: What a device would take for a step.
_DEVICE_S = 0.04


def main(megabytes: int) -> int:
    """Measure; 1 where a bound does not hold."""
    where = os.environ.get("GIPFEL_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="gipfel-bench-", dir=where) as name:
        folder = Path(name)
        timers = train(folder, megabytes, ROUNDS, STEPS, _DEVICE_S)
        rows = _rows(folder, timers)
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["holds"] for row in rows) else 1


def train(
    folder: Path, megabytes: int, rounds: int, steps: int, device_s: float, kinds: Sequence[str] = KINDS
) -> list[Timers]:
    """Train two ranks, whose run and checkpoints are in `folder`; return what the ranks' own timers say.

    Parameters
    ----------
    megabytes
        Size of each rank's part of a checkpoint.
    rounds
        Checkpoints of each kind, after one for warming up.
    steps
        Steps from one checkpoint to the next.
    device_s
        Seconds that a step waits for the device.
    kinds
        `KINDS` or `RECORDED`.
    """
    ranks = []
    for rank in range(_WORLD):
        process = os.fork()
        if not process:
            code = 1
            try:
                _train(folder, rank, megabytes, rounds, steps, device_s, kinds)
                code = 0
            finally:
                os._exit(code)
        ranks.append(process)
    if any(os.waitpid(each, 0)[1] for each in ranks):
        raise SystemExit("A rank has failed.")
    return [json.loads((folder / f"timers-{rank}.json").read_text()) for rank in range(_WORLD)]


def costs(folder: Path, timers: Sequence[Timers]) -> tuple[CheckpointReport, float, float]:
    """Return the report on the recorded run, and the cost of all checkpoints there and by the ranks' timers.

    The costs are in seconds.
    """
    report = read_checkpoints([folder / each for each in RECORDED], folder)
    if report.cost is None:
        raise SystemExit(f"The run has no cost: {report.notes}")
    own = statistics.mean(sum(cost for kind in timer for cost, _ in timer[kind]) for timer in timers)
    # No samples were recorded, so what torch.save took is among the checkpoints or evaluations.
    return report, report.cost.cost_s + report.cost.regular_s, own


def _train(
    folder: Path, rank: int, megabytes: int, rounds: int, steps: int, device_s: float, kinds: Sequence[str]
) -> None:
    """Train one rank, log its steps with ``gipfel_widgets.log``, and write what its own timers say."""
    import torch  # noqa: PLC0415 - after the fork
    import torch.distributed as dist  # noqa: PLC0415

    from gipfel_widgets import log  # noqa: PLC0415
    from gipfel_widgets.checkpoints import Checkpoints  # noqa: PLC0415

    os.environ.update(GIPFEL_RUN=os.fspath(folder), RANK=str(rank), GIPFEL_NODE="node-1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=_WORLD)
    state = {f"layer-{each}": torch.randn(megabytes * 1_000_000 // 4 // 8) for each in range(8)}
    # Each rank has tensors of its own, as with a sharded model.
    state = {f"{name}-{rank}": each for name, each in state.items()}
    kept: dict[str, Any] = {
        "blocking": Checkpoints(folder / "blocking", keep=1, every=10**6, stagger=0.0),
        "asynchronous": Checkpoints(folder / "asynchronous", keep=1, every=10**6, stagger=0.0),
        "staggered": Checkpoints(
            folder / "staggered", keep=1, every=10**6, local=folder / f"node-{rank}", limit=megabytes * 1e6
        ),
    }
    #: Whether a rank still writes, added up over the ranks in each step, so that all take as many.
    writes = torch.zeros(1)
    lost: Timers = {kind: [] for kind in kinds}
    step = 0
    for _ in range(rounds + 1):
        for kind in kinds:
            stall, quiet, busy, place, saving = 0.0, list[float](), list[float](), 0, False
            while place < steps or saving:
                step += 1
                began = time.perf_counter()
                if place == steps // 4:
                    if kind == "torch.save":
                        _torch_save(folder / f"peer-{rank}.pt", state)
                        dist.barrier()
                        stall = time.perf_counter() - began
                    else:
                        kept[kind].save(step, state)
                        if kind == "blocking":
                            kept[kind].wait()
                            dist.barrier()
                        stall = time.perf_counter() - began
                after = time.perf_counter()
                time.sleep(device_s)
                future = kept[kind]._saving if kind in kept else None
                writes.fill_(float(future is not None and not future.done()))
                dist.all_reduce(writes)
                took = time.perf_counter()
                saving = bool(writes.item())
                (busy if saving else quiet).append(took - after)
                place += 1
                log(step=step, step_s=took - began)
            usual = statistics.median(quiet)
            lost[kind].append((stall + sum(busy) - len(busy) * usual, usual))
    for each in kept.values():
        each.close()
    (folder / f"timers-{rank}.json").write_text(json.dumps(lost))


def _torch_save(path: Path, state: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415 - after the fork

    with path.with_suffix(".new").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)


def _rows(folder: Path, timers: Sequence[Timers]) -> list[dict[str, Any]]:
    """Compare the ranks' timers with what the recorded steps say, and draw these."""
    shares = {}
    for kind in KINDS:
        # The first one is for warming up.
        known = [each for timer in timers for each in timer[kind][1:]]
        shares[kind] = 100 * statistics.median(cost / (STEPS * usual) for cost, usual in known)
    rows = [
        {
            "name": f"checkpoint-stall.{kind}", "ours": shares[kind], "peer": shares["torch.save"],
            "unit": "% of step time", "ratio": shares[kind] / shares["torch.save"], "bound": BOUND_SHARE,
            "holds": shares[kind] <= BOUND_SHARE * shares["torch.save"],
        }
        for kind in KINDS[1:]
    ]  # fmt: skip
    report, found, own = costs(folder, timers)
    figure = checkpoint_figure(report)
    assert report.cost is not None
    assert figure is not None
    _IMAGE.parent.mkdir(exist_ok=True)
    _IMAGE.write_bytes(static_image(figure, width=1200))
    ratio = max(found / own, own / found)
    print("\n".join(report.cost.sentences()), file=sys.stderr)
    return [
        *rows,
        {
            "name": "checkpoint-cost (larger/smaller)", "ours": found, "peer": own, "unit": "s",
            "ratio": ratio, "bound": BOUND_COST, "holds": ratio <= BOUND_COST,
        },
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
