"""Stacks, a flame graph and a trace of ranks while they run, on a launch without a container."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.looks import stack_lines
from gipfel_extension.job.looks import LaunchRoles, cost_of, default_ranks, select_ranks
from gipfel_extension.training.launch import Launch, launch
from gipfel_extension.training.launches.requests import LookRequest, earlier_looks, main_frames, request_look
from gipfel_extension.training.rank_looks import permission_problem
from gipfel_extension.training.record import HangNotice, LaunchState, read_state, write_state
from gipfel_extension.training.record.spec import LaunchSpec

_PROGRAM = """
import os, re, time
def hold_the_lock():
    while True:
        re.match("(a+)+$", "a" * 27 + "b")
def train():
    import torch
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    print("READY", flush=True)
    while True:
        weight.square().sum().backward()
        optimizer.step()
        time.sleep(0.05)
hold_the_lock() if os.environ["RANK"] == "1" else train()
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    place = tmp_path_factory.mktemp("looks")
    (place / "alps-1").mkdir()
    (place / "train.py").write_text(_PROGRAM)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(place),
        "GIPFEL_RUNS": str(place), "GIPFEL_RUN": str(place / "alps-1"), "GIPFEL_SCHEDULER": "local",
    }  # fmt: skip
    spec = LaunchSpec(target="train.py", launcher="srun", gpus_per_node=2, preflight=False, layout="dp=2")
    made = launch(spec, environment, directory=place)
    assert isinstance(made, Launch)
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(made) and not made.state.ended and time.monotonic() < deadline:
            time.sleep(0.2)
        if _is_ready(made):
            yield made
    finally:
        made.stop()
        assert made.wait(60) is not None


def _is_ready(running: Launch) -> bool:
    said = {each.rank for each in running.logs().lines if "READY" in each.text}
    return 0 in said and len(list((running.folder / "progress").glob("*"))) == 2


def _look(started: Launch, **details: Any) -> dict[int, Any]:
    look = request_look(started.folder, LookRequest(**details))
    look.wait(60)
    assert not look.missing
    return look.answers


def test_stacks_come_by_a_signal_even_from_a_rank_that_holds_pythons_lock(started: Launch) -> None:
    look = request_look(started.folder, LookRequest(what="stacks", ranks=(0, 1), method="signal"))
    look.wait(60)
    lines = stack_lines(look)
    assert lines[0].startswith("rank 0 (signal), train (train.py:"), lines
    assert any(line.startswith("rank 1 (signal), hold_the_lock (train.py:5)") for line in lines), lines
    assert not any("runpy" in line or "/run.py" in line for line in lines)
    assert earlier_looks(started.folder)[0].identifier == look.identifier


@pytest.mark.skipif(not shutil.which("py-spy"), reason="py-spy is not installed")
def test_py_spy_is_used_where_it_may_attach_and_else_the_signal_says_why(started: Launch) -> None:
    found = _look(started, what="stacks", ranks=(1,))[1]
    assert found.method == "py-spy" or "may not attach" in found.note
    assert "hold_the_lock" in Path(found.path).read_text()


def test_ctrl_c_leaves_the_request_and_says_where_answers_will_be(started: Launch) -> None:
    process = subprocess.Popen(
        _argv("trace", started, "--ranks", "1", "--yes"),
        env=_environment(started),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    while "cost:" not in said:
        said = process.stderr.readline()
    while earlier_looks(started.folder)[0].request.what != "trace":
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 130, rest
    assert f"`gipfel trace {started.folder.name} --last`" in rest


def test_a_flame_graph_a_trace_and_what_has_no_gpu(started: Launch) -> None:
    found = _look(started, what="flame", ranks=(0,), seconds=1, method="signal")[0]
    assert (found.method, found.error) == ("sampler", "")
    shown = _gipfel(started, "stacks", "--flame", "--last")
    svg = Path(shown.stdout.rpartition("flame graph: ")[2].strip()).read_text()
    assert "train (train.py:" in svg
    looks = started.folder / "deeper"
    before = set(looks.iterdir())
    traced = _gipfel(started, "trace", "--ranks", "0", "--steps", "2", "--json")
    assert len(set(looks.iterdir()) - before) == 1
    assert "cost: 2 steps of 1 rank" in traced.stderr
    answer = json.loads(traced.stdout)["answers"][0]
    events = json.loads(Path(answer["path"]).read_text())["traceEvents"]
    assert sum("Optimizer.step" in each.get("name", "") for each in events) >= 2
    refused = _gipfel(started, "memory", "--ranks", "0", "--steps", "1")
    assert (refused.returncode, "it uses no GPU" in refused.stdout) == (1, True)
    absent = _gipfel(started, "stacks", "--ranks", "0,7")
    assert (absent.returncode, absent.stderr) == (2, "gipfel: Rank 7 is not running. Running: ranks 0-1.\n")


def _argv(command: str, started: Launch, *words: str) -> list[str]:
    return [sys.executable, "-m", "gipfel_extension.cli", command, started.folder.name, *words]


def _environment(started: Launch) -> dict[str, str]:
    return {
        **os.environ,
        "GIPFEL_RUNS": str(started.folder.parents[2]),
        "GIPFEL_RUN": str(started.folder.parents[1]),
    }


def _gipfel(started: Launch, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 90}
    return subprocess.run(_argv(command, started, *words), env=_environment(started), check=False, **how)


def test_by_default_the_accused_of_a_hang_a_peer_on_another_node_and_rank_0(tmp_path: Path) -> None:
    folder = tmp_path / "launches" / "3"
    (folder / "ranks").mkdir(parents=True)
    for rank in range(8):
        record = {"rank": rank, "node": f"n{rank // 4}", "attempt": 1, "world": 8}
        (folder / "ranks" / f"{rank}.json").write_text(json.dumps(record))
    notice = HangNotice(time_ns=1, message="No rank has ended a step.", ranks=(2,))
    write_state(folder, LaunchState(phase="running", number=3, hang=notice))
    found = LaunchRoles.of(folder)
    assert default_ranks(found).ranks == (0, 2, 4)
    assert select_ranks("node=n1", found).ranks == (4, 5, 6, 7)
    assert select_ranks("all", found).ranks == tuple(range(8))
    for wrong in ("8", "3-", "dp=0", "node=n9", ""):
        with pytest.raises(GipfelError):
            select_ranks(wrong, found)
    write_state(folder, read_state(folder).model_copy(update={"hang": None}))
    assert default_ranks(found).ranks == (0, 4)
    assert cost_of(LookRequest(what="stacks", ranks=(0,))).startswith("1 rank is stopped for a few")
    with pytest.raises(GipfelError, match=r"Rank 9 .* is not running\. Running: ranks 0-7"):
        request_look(folder, LookRequest(what="stacks", ranks=(9,)))


@pytest.mark.parametrize(
    ("lines", "scope", "capabilities", "says"),
    [
        (["Error: Permission denied (os error 13)"], "1", "0", "ptrace_scope is 1"),
        (["Error: Operation not permitted (os error 1)"], "2", "0", "needs CAP_SYS_PTRACE; ask the site"),
        (["Error: EPERM: Operation not permitted"], "3", "0", "off until the next boot"),
        (["Error: EPERM: Operation not permitted"], "", "0", "CAP_SYS_PTRACE is missing"),
        (["Error: EPERM: Operation not permitted"], "", "1fffeffffff", "although CAP_SYS_PTRACE is there"),
        (["Error: Failed to find python version"], "1", "0", "py-spy failed: Error: Failed to find"),
    ],
)
def test_the_permission_that_is_missing_is_named(
    lines: list[str], scope: str, capabilities: str, says: str
) -> None:
    assert says in permission_problem(lines, scope, {"CapEff": capabilities})


def test_stacks_of_py_spy_and_faulthandler_are_read_alike() -> None:
    spied = (
        'Process 7: python train.py\nPython v3.11.2 (/usr/bin/python3)\n\nThread 7 (active): "MainThread"\n'
        '    wait (/x/site-packages/torch/nn.py:9)\n    main (/home/a/train.py:3)\nThread 8 (idle): "t"\n'
        "    run (/usr/lib/python3.11/threading.py:1)\n"
    )
    written = (
        'Thread 0x01 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 1 in run\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/x/site-packages/torch/nn.py", line 9 in wait\n  File "/home/a/train.py", line 3 in main\n'
    )
    expected = (("wait", "/x/site-packages/torch/nn.py", "9"), ("main", "/home/a/train.py", "3"))
    assert main_frames(spied) == main_frames(written) == expected
