"""Findings from dumps of whole jobs: simulated ones, hangs made on purpose, and real jobs with gloo."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from arrivals import HEALTHY, HELD_OUT, TRIED
from arrivals import measure as measure_arrivals
from hang_dumps import FAULTS, Layout, make_hang
from hang_dumps_later import LATER_FAULTS, make_later_hang
from hangs import judge, report_on

from gipfel_extension.communication import read_communication
from gipfel_extension.training.flight_recorder import report_of


@pytest.mark.parametrize("family", [*TRIED, *HELD_OUT])
def test_in_simulated_jobs_late_ranks_are_named_and_no_others(family: str) -> None:
    tally: Counter[str] = Counter()
    for fault in (*HEALTHY, "rank_20", "node_20"):
        found = measure_arrivals(family, fault, seed=3, draws=8)
        tally += Counter({key: n for key, n in found.items() if isinstance(n, int)})
    assert tally["wrong"] == 0
    assert tally["right"] >= 13


@pytest.mark.parametrize("fault", FAULTS)
def test_made_hangs_name_the_faulty_rank_and_no_other(fault: str) -> None:
    for number in range(3):
        hang = make_hang(
            Layout(2, 2, 2), (number, "test"), fault, buffer=24 * (number + 1), timing=True, steps=4
        )
        verdict = judge(hang, report_on(hang))
        # A call that is left out can pair up with a later one of the same kind: dumps don't show that.
        assert verdict == "right" or fault == "shifted"


@pytest.mark.parametrize("fault", sorted(set(LATER_FAULTS) - {"link"}))
def test_hangs_of_other_layouts_name_the_faulty_rank_and_no_other(fault: str) -> None:
    for draw in range(2):
        hang = make_later_hang((1, fault, "json", draw), fault, "json")
        assert judge(hang, report_on(hang)) == "right"


_GLOO = """
import os, sys, threading, time
from pathlib import Path
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

def next_call(fault):
    if fault == "sleeps":
        time.sleep(300)
    elif fault == "other-call":
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(3))

def run(fault, rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    if rank == 2 and fault == "dies":
        os._exit(9)
    def work():
        try:
            next_call(fault if rank == 2 else "")
        except RuntimeError:
            pass
    threading.Thread(target=work, daemon=True).start()
    time.sleep(1.6)
    if rank:
        (folder / f"rank_{rank}").write_bytes(_dump_fr_trace(True, True, False))
    else:
        (folder / "rank_0.json").write_bytes(_dump_fr_trace_json(True, False))
    while len(list(folder.glob("rank_*"))) < 3 - (fault == "dies"):
        time.sleep(0.05)

# torch is loaded once, before the forks.
children = []
for fault in sys.argv[2:]:
    for rank in range(3):
        if (child := os.fork()) == 0:
            try:
                run(fault, rank, Path(sys.argv[1], fault))
            finally:
                os._exit(0)
        children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def gloo_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with dumps of gloo jobs of three ranks: rank 2 sleeps, calls a barrier, dies."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("gloo")
    faults = ("sleeps", "other-call", "dies")
    for fault in faults:
        (folder / fault).mkdir()
    variables = {**os.environ, "TORCH_FR_BUFFER_SIZE": "50", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", _GLOO, str(folder), *faults], env=variables, timeout=240, check=True
    )
    for fault in faults:
        (folder / fault / "store").unlink(missing_ok=True)
    return folder


def test_a_rank_of_a_real_gloo_job_that_sleeps_is_named(gloo_dumps: Path) -> None:
    report = report_of(gloo_dumps / "sleeps")
    assert [(each.rank, each.side) for each in report.faulty_ranks] == [(2, "host")]
    assert report.faulty_ranks[0].why.startswith("it never called all_reduce 4 of default_pg")
    assert (report.waiting, report.mismatches, report.missing_dumps) == ((0, 1), (), ())


def test_a_rank_of_a_real_gloo_job_that_calls_something_else_is_named(gloo_dumps: Path) -> None:
    report = report_of(gloo_dumps / "other-call")
    assert [(each.rank, each.side) for each in report.faulty_ranks] == [(2, "host")]
    (mismatch,) = report.mismatches
    assert (mismatch.kind, mismatch.sequence) == ("operation", 4)
    assert [each.ranks for each in mismatch.sides] == [(0, 1), (2,)]


def test_a_real_gloo_job_of_which_a_rank_died_is_not_called_healthy(gloo_dumps: Path) -> None:
    # gloo marks the calls of the others, which fail at once, as it marks those that have ended.
    report = report_of(gloo_dumps / "dies")
    assert (report.verdict, report.faulty_ranks, report.missing_dumps) == ("unknown", (), (2,))
    assert report.reason.startswith("rank 2 has left no dump, and it is not recorded whether all_reduce 4")


def test_bytes_between_ranks_of_a_real_gloo_job_are_counted(gloo_dumps: Path) -> None:
    found = read_communication(gloo_dumps / "sleeps")
    # Three all-reduces of three floats ended, and ranks 0 and 1 wait in a fourth.
    assert found.matrix.sent[0][1] == pytest.approx(4 * 2 * 12 / 3, abs=1)
    assert [(each.label, each.ranks, each.calls) for each in found.groups] == [
        ("default_pg", "ranks 0-2", {"all_reduce": 4})
    ]
    assert "gloo does not" in found.notes[-1]
