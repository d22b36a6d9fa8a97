"""Dumps of PyTorch's flight recorder: hostile ones are not run, and the ranks that cause a hang are named."""

import json
import os
import pickle
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hang_dumps import Layout, make_hang

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import main
from gipfel_extension.training.flight_recorder import read_dumps, report_of
from gipfel_extension.training.flight_recorder.plain_pickle import plain_value

_GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def _entry(
    number: int, *, state: str = "completed", name: str = "nccl:all_reduce", at: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": name,
        "time_created_ns": 10**18 + number * 10**9 + at,
        "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": state, "is_p2p": False,
        "frames": [
            {"filename": "/x/torch/distributed.py", "line": 1, "name": "all_reduce"},
            {"filename": "train.py", "line": 40 + number, "name": "step"},
        ],
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
    last = "its last call is all_reduce 2 of default_pg (train.py:42 in step)"
    why = f"it never called all_reduce 3 of default_pg; {last}"
    assert report_of(tmp_path).lines[0] == (
        f"Cause: rank 2 on nid1 GPU 6 (host side): {why}. 3 ranks wait for it."
    )
    assert main(["flight-recorder", str(tmp_path), "--json"]) == 0
    faulty = {
        "rank": 2, "side": "host", "why": why, "group": "default_pg", "frame": "train.py:42 in step"
    }  # fmt: skip
    assert json.loads(capsys.readouterr().out) == {
        "verdict": "cause", "reason": "", "culprits": [faulty], "waiting": [0, 1, 3],
        "mismatches": [], "missing_dumps": [], "stragglers": [], "late_reason": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "kind", "call"),
    [
        ({"name": "nccl:broadcast"}, "operation", "broadcast of [4]"),
        ({"input_sizes": [[5]]}, "size", "all_reduce of [5] -> [4]"),
        ({"input_dtypes": ["Half"]}, "dtype", "all_reduce of Float Half"),
    ],
)
def test_a_rank_that_called_something_else_is_the_odd_one(
    tmp_path: Path, odd: dict[str, Any], kind: str, call: str
) -> None:
    for rank in range(4):
        _write(tmp_path, rank, [_entry(1), _entry(2, state="started", **(odd if rank == 3 else {}))])
    report = report_of(tmp_path)
    (mismatch,) = report.mismatches
    assert (mismatch.kind, mismatch.sequence) == (kind, 2)
    assert [(each.ranks, each.call) for each in mismatch.sides][1] == ((3,), call)
    assert mismatch.sides[0].ranks == (0, 1, 2)
    assert [(each.rank, each.side) for each in report.faulty_ranks] == [(3, "host")]


def test_a_gpu_that_does_not_finish_or_begin_is_on_the_device_side(tmp_path: Path) -> None:
    for states in (("completed", "started"), ("started", "scheduled")):
        for rank in range(4):
            _write(tmp_path, rank, [_entry(1), _entry(2, state=states[rank == 1])])
        report = report_of(tmp_path)
        assert [(each.rank, each.side) for each in report.faulty_ranks] == [(1, "device")]


def test_where_nobody_is_behind_it_says_that_it_cannot_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        _write(tmp_path, rank, [_entry(1), _entry(2, state="started")])
    assert main(["flight-recorder", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(
        "Cannot tell, because all 4 ranks called all_reduce 2 of default_pg and none has finished it"
    )


def _times(rank: int, number: int, *, offset_s: float, drift: float, late_s: float) -> dict[str, Any]:
    """Return the times of a call by a clock; ends are seen up to 100 ms late, as by NCCL's watchdog."""
    rng = random.Random(f"{rank} {number}")
    called, ended = number + late_s + rng.uniform(0, 0.01), number + 0.3 + rng.uniform(0, 0.1)
    by_clock = [round((each * (1 + drift) + offset_s) * 1e9) for each in (called, ended)]
    return {
        "time_created_ns": 10**18 + by_clock[0],
        "time_discovered_completed_ns": 10**18 + by_clock[1],
    }


def _with_clocks(folder: Path, late: dict[int, float], *, ends: bool = True) -> None:
    """Write 40 calls of 8 ranks on 4 nodes, whose clocks differ by seconds and drift."""
    dumps = folder / "flight_recorder"
    dumps.mkdir(parents=True)
    (folder / "ranks").mkdir()
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(8)))}}
    for rank in range(8):
        node = rank // 2
        entries = []
        for number in range(1, 41):
            times = _times(
                rank, number, offset_s=1.7 * node**2, drift=3e-5 * node, late_s=late.get(rank, 0.0)
            )
            if not ends:
                times.pop("time_discovered_completed_ns")
            entries.append(_entry(number, **times))
        content = {"version": "2.10", "pg_config": group, "pg_status": {}, "entries": entries}
        (dumps / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
        note = {"rank": rank, "local_rank": rank % 2, "node": f"nid{node}", "gpus": str(rank % 2)}
        (folder / "ranks" / f"{rank}.json").write_text(json.dumps(note))


@pytest.mark.parametrize(
    ("late", "unit"), [({}, ""), ({5: 0.1}, ""), ({2: 0.1, 3: 0.1}, "node nid1"), ({0: 0.3}, "")]
)
def test_late_ranks_are_named_although_clocks_of_nodes_differ_and_drift(
    tmp_path: Path, late: dict[int, float], unit: str
) -> None:
    _with_clocks(tmp_path, late)
    report = report_of(tmp_path)
    assert (report.verdict, report.late_reason) == ("none", "")
    assert sorted(each.location.rank for each in report.stragglers) == sorted(late)
    assert {each.unit for each in report.stragglers} == ({unit} if late else set())
    for each in report.stragglers:
        assert each.behind_ms == pytest.approx(1e3 * late[each.location.rank], abs=25)


def test_without_end_times_clocks_of_nodes_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "telemetry").mkdir(parents=True)
    _with_clocks(run / "launches" / "1", {5: 0.1}, ends=False)
    report = report_of(run / "launches" / "1")
    assert report.stragglers == ()
    assert report.late_reason.startswith("the times at which collectives end")
    assert main(["diagnose", str(run), "--json"]) == 0
    unknown = json.loads(capsys.readouterr().out)["verdicts"][-1]
    assert unknown["kind"] == "unknown"
    assert "calls collectives late is not known" in unknown["evidence"]
    _with_clocks(run / "launches" / "2", {5: 0.1})
    assert main(["diagnose", str(run), "--json"]) == 0
    late = json.loads(capsys.readouterr().out)["verdicts"][-1]
    assert (late["kind"], late["ranks"]) == ("slow_rank", [5])


def _text(value: str, index: int) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode() + b"q" + bytes([index])


def test_entries_of_equal_shape_have_the_values_of_the_pickle() -> None:
    """Also where a number of the memo stands for another text from some entry on."""
    keys = b"".join(_text(f"key {n}", n) for n in range(10))
    draw = random.Random(5)
    values = [b"K\x07", b"M\x01\x02", b"J\xff\xff\xff\xff", b"N", b"\x88", b"\x89", b"h\x01", b"j\x02\0\0\0",
              b"\x8a\x00", b"\x8a\x02\xfe\xff", b"\x8a\x08" + b"\x01" * 8, b"G" + struct.pack(">d", 0.5),
              b"h\x01h\x02\x86", b"K\x01\x85", b"K\x01NK\x02\x87", b"]", b"](e", b"](K\x01h\x03e",
              b"](](K\x01K\x02e](ee", b"](]K\x05e", b")"]  # fmt: skip

    def entry() -> bytes:
        return b"}(" + b"".join(b"h" + bytes([n]) + draw.choice(values) for n in range(10)) + b"u"

    for _ in range(300):
        entries = [entry() if draw.random() < 0.9 else _text("other", draw.randrange(10)) for _ in range(8)]
        content = b"\x80\x02](" + keys + b"".join(entry for entry in entries for _ in range(2)) + b"e."
        assert plain_value(content) == pickle.loads(content)
        end = draw.randrange(len(content))
        damaged = content[:end] + bytes([draw.randrange(256)]) + content[end + 1 :]
        with suppress(ValueError):
            plain_value(damaged)


def test_late_ranks_missing_dumps_and_a_healthy_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in range(4):
        entries = [_entry(number, at=30_000_000 if rank == 1 else rank) for number in range(1, 25)]
        _write(tmp_path, rank, entries)
        note = {"rank": rank, "local_rank": rank, "node": "nid0", "gpus": str(rank)}
        (tmp_path / "ranks" / f"{rank}.json").write_text(json.dumps(note))
    report = report_of(tmp_path)
    assert (report.verdict, report.faulty_ranks) == ("none", ())
    assert [(each.location.rank, round(each.behind_ms)) for each in report.stragglers] == [(1, 30)]
    assert main(["flight-recorder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("No rank waits for another in these dumps.")
    (tmp_path / "rank_2").unlink()
    report = report_of(tmp_path)
    assert (report.missing_dumps, report.faulty_ranks) == ((2,), ())
    for rank in (0, 1, 3):
        _write(tmp_path, rank, [_entry(1), _entry(2, state="started")])
    (faulty,) = report_of(tmp_path).faulty_ranks
    assert (faulty.rank, faulty.side) == (2, "host")
    assert "left no dump" in faulty.why
    (tmp_path / "rank_2").write_bytes(b"\x80\x02}q\x00(")
    report = report_of(tmp_path)
    assert (report.verdict, report.missing_dumps) == ("unknown", (2,))
    assert "dumps of rank 2 can't be read" in report.reason


def test_a_young_call_is_that_of_a_running_job(tmp_path: Path) -> None:
    for rank in range(4):
        last = [] if rank == 2 else [_entry(2, state="started")]
        _write(tmp_path, rank, [_entry(1), *last])
        os.utime(tmp_path / f"rank_{rank}", ns=(0, 10**18 + 2 * 10**9 + 3 * 10**8))
    report = report_of(tmp_path)
    assert (report.verdict, report.faulty_ranks) == ("unknown", ())
    assert "0.3 s old" in report.reason


def test_dumps_of_several_jobs_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(4):
        _write(tmp_path, rank, [_entry(1)])
    other = {"pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [_entry(1)]}
    (tmp_path / "rank_1").write_bytes(pickle.dumps(other))
    assert main(["flight-recorder", str(tmp_path), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "dumps of several jobs: jobs of 2 ranks (rank 1) and 4 ranks (rank 0)" in shown.err
    _write(tmp_path, 1, [_entry(1)])
    (tmp_path / "nccl_trace_rank_1").write_bytes((tmp_path / "rank_1").read_bytes())
    with pytest.raises(GipfelError, match="several jobs: two are of rank 1"):
        report_of(tmp_path)


def test_coalesced_calls_take_the_state_of_their_last_entry(tmp_path: Path) -> None:
    groups = {"7": {"desc": "pp", "ranks": "[4, 6]"}}
    for rank, name, others in ((4, "send 0->1", "completed"), (6, "recv 1<-0", "completed")):
        part = {"process_group": ("7", "pp"), "is_p2p": True, "p2p_seq_id": 3, "collective_seq_id": 0}
        entries = [
            _entry(1, state="scheduled", name=f"nccl:{name}", **part),
            _entry(2, state=others, name="nccl:coalesced", **part),
        ]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps({"pg_config": groups, "entries": entries}))
    assert report_of(tmp_path).verdict == "none"
    open_send = [_entry(1, state="scheduled", name="nccl:send 0->1", **part)]
    (tmp_path / "rank_4").write_bytes(pickle.dumps({"pg_config": groups, "entries": open_send}))
    (tmp_path / "rank_6").write_bytes(pickle.dumps({"pg_config": groups, "entries": []}))
    report = report_of(tmp_path)
    assert [(each.rank, each.side, each.group) for each in report.faulty_ranks] == [(6, "host", "pp")]


def test_several_ranks_without_a_dump_are_not_accused(tmp_path: Path) -> None:
    for rank in (0, 1):
        _write(tmp_path, rank, [_entry(1), _entry(2, state="started")])
    report = report_of(tmp_path)
    assert (report.verdict, report.faulty_ranks, report.missing_dumps) == ("unknown", (), (2, 3))
    assert "dumps of ranks 2-3 are missing" in report.reason


def test_calls_in_different_orders_name_the_rank_that_differs(tmp_path: Path) -> None:
    groups = {**_GROUPS, "1": {"desc": "other", "ranks": "[0, 1, 2, 3]"}}
    first = _entry(1, state="started")
    second = {**_entry(1, state="scheduled"), "process_group": ("1", "other"), "pg_id": 1}
    for rank in range(4):
        entries = [second, first] if rank == 2 else [first, second]
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps({"pg_config": groups, "entries": entries}))
    report = report_of(tmp_path)
    assert [(each.rank, each.side) for each in report.faulty_ranks] == [(2, "host")]
    (mismatch,) = report.mismatches
    assert mismatch.line == (
        "Calls were made in different orders: all_reduce 1 of default_pg before all_reduce 1 of other by "
        "ranks 0-1, 3; all_reduce 1 of other before all_reduce 1 of default_pg by rank 2."
    )


def test_the_json_form_says_the_same(tmp_path: Path) -> None:
    hang = make_hang(Layout(2, 1, 2), 1, "host")
    for rank, raw in hang.dumps.items():
        for entry in raw["entries"]:
            entry.pop("frames")
        raw["pg_status"] = {
            key: {name: str(number) for name, number in counters.items()}
            for key, counters in raw["pg_status"].items()
        }
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(raw))
    assert tuple(each.rank for each in report_of(tmp_path).faulty_ranks) == hang.truth


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
    found = read_dumps(tmp_path)
    assert [each.rank for each in found.dumps] == [7]
    assert len(found.unreadable) == 7
    assert not (tmp_path / "pwned").exists()
    assert len(report_of(tmp_path).unreadable) == 7


def test_a_directory_without_dumps_says_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flight-recorder", str(tmp_path)]) == 2
    assert "Name the directory of TORCH_FR_DUMP_TEMP_FILE" in capsys.readouterr().err
