"""Dumps of PyTorch's flight recorder: hostile ones are not run, and what they say together is named."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gipfel_extension.cli.main import main
from gipfel_extension.training.flight_recorder import read_dump, read_dumps, report_of

_GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def _entry(
    number: int, *, state: str = "completed", name: str = "nccl:all_reduce", at: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "p2p_seq_id": 0, "profiling_name": name, "time_created_ns": 10**18 + number * 10**9 + at,
        "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": state, "is_p2p": False,
        "frames": [{"filename": "/x/torch/distributed.py", "line": 1}, {"filename": "train.py", "line": 42}],
        **more,
    }  # fmt: skip


def _write(folder: Path, rank: int, entries: list[dict[str, Any]], protocol: int = 2) -> None:
    content = {"version": "2.10", "pg_config": _GROUPS, "pg_status": {}, "entries": entries}
    (folder / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=protocol))


def test_a_rank_that_never_came_is_named_with_its_node_and_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = tmp_path / "flight_recorder"
    dumps.mkdir()
    (tmp_path / "ranks").mkdir()
    for rank in range(4):
        last = [] if rank == 2 else [_entry(3, state="started")]
        _write(dumps, rank, [_entry(1), _entry(2), *last], protocol=2 + rank % 4)
        note = {"rank": rank, "local_rank": rank % 2, "node": f"nid{rank // 2}", "gpus": "6,7"}
        (tmp_path / "ranks" / f"{rank}.json").write_text(json.dumps(note))
    report = report_of(tmp_path)
    (finding,) = report.findings
    assert (finding.kind, finding.sequence, finding.operation) == ("missing", 3, "nccl:all_reduce")
    assert [(each.rank, each.node, each.gpu) for each in finding.missing] == [(2, "nid1", "6")]
    assert finding.message == (
        "rank 2 on nid1 GPU 6 never called nccl:all_reduce number 3 (train.py:42), for which 3 ranks wait."
    )
    assert main(["flight-recorder", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["missing"][0]["rank"] == 2


def test_one_rank_alone_is_not_said_to_be_several(tmp_path: Path) -> None:
    dumps = tmp_path / "flight_recorder"
    dumps.mkdir()
    for rank in range(4):
        last = [] if rank else [_entry(2, state="started")]
        _write(dumps, rank, [_entry(1), *last])
    (finding,) = report_of(tmp_path).findings
    assert finding.message.endswith("for which 1 rank waits.")


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ({"name": "nccl:broadcast"}, "type"),
        ({"input_sizes": [[5]]}, "size"),
        ({"input_dtypes": ["Half"]}, "dtype"),
    ],
)
def test_a_rank_that_called_something_else_is_the_odd_one(
    tmp_path: Path, odd: dict[str, Any], kind: str
) -> None:
    for rank in range(4):
        _write(tmp_path, rank, [_entry(1), _entry(2, state="started", **(odd if rank == 3 else {}))])
    (finding,) = report_of(tmp_path).findings
    assert finding.kind == kind
    assert [each.rank for each in finding.culprits] == [3]


def test_late_ranks_missing_dumps_and_a_healthy_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        _write(
            tmp_path, rank, [_entry(number, at=30_000_000 if rank == 1 else rank) for number in range(1, 6)]
        )
    report = report_of(tmp_path)
    assert not report.findings
    assert [(each.location.rank, round(each.behind_ms)) for each in report.stragglers] == [(1, 30)]
    assert main(["flight-recorder", str(tmp_path)]) == 0
    assert "The recorded calls show no fault" in capsys.readouterr().out
    (tmp_path / "rank_2").unlink()
    (finding,) = report_of(tmp_path).findings
    assert (finding.kind, finding.missing[0].rank) == ("no_dump", 2)
    for rank in range(4):
        _write(tmp_path, rank, [_entry(1), _entry(2, state="started" if rank else "scheduled")])
    (finding,) = report_of(tmp_path).findings
    assert (finding.kind, [each.rank for each in finding.culprits]) == ("stuck", [0])


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch pwned",))


def test_a_dump_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = {
        "rank_0": pickle.dumps(_Evil()),
        "rank_1": pickle.dumps({"entries": [_Evil()]}, protocol=4),
        "rank_2": b"cos\nsystem\n(S'touch pwned'\ntR.",
        "rank_3": b"\x80\x04\x95" + b"\xff" * 40,
        "rank_4": b"",
        "rank_5": b"{" * 100_000,
        "rank_6": pickle.dumps([1, 2]),
        "rank_7": pickle.dumps({"entries": [{"collective_seq_id": "x", "frames": 3, "process_group": 7}, 5]}),
    }
    for name, content in hostile.items():
        (tmp_path / name).write_bytes(content)
    dumps, unreadable = read_dumps(tmp_path)
    assert [each.rank for each in dumps] == [7]
    assert len(unreadable) == 7
    assert not (tmp_path / "pwned").exists()
    assert len(report_of(tmp_path).unreadable) == 7


def test_what_torch_itself_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = (
        "import sys, torch, torch.distributed as dist\n"
        "from pathlib import Path\n"
        "dist.init_process_group('gloo', init_method='file://' + sys.argv[1] + '/s', rank=0, world_size=1)\n"
        "[dist.all_reduce(torch.ones(3)) for _ in range(4)]\n"
        "from torch._C._distributed_c10d import _dump_fr_trace\n"
        "Path(sys.argv[1], 'rank_0').write_bytes(_dump_fr_trace(True, True, False))\n"
    )
    variables = {**os.environ, "TORCH_FR_BUFFER_SIZE": "50"}
    argv = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(argv, env=variables, check=True, capture_output=True, timeout=120)
    dump = read_dump((tmp_path / "rank_0").read_bytes(), 0)
    assert [each.operation for each in dump.entries] == ["gloo:all_reduce"] * 4
    assert dump.entries[0].location.startswith("<string>")
    assert not report_of(tmp_path).findings
