"""Communication: bytes between ranks and nodes, and the slowest calls; a hostile file gives one line."""

import json
import os
import pickle
from pathlib import Path

import pytest
from communication_files import (
    DP_BYTES,
    STEPS,
    TP_BYTES,
    entry,
    ras_answer,
    write_dumps,
    write_inspector,
)

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import main
from gipfel_extension.communication import read_communication

_NODES = {rank: f"nid{rank // 8:03}" for rank in range(128)}


def test_bytes_of_ranks_are_those_of_their_collectives(tmp_path: Path) -> None:
    write_dumps(tmp_path, 16)
    found = read_communication(tmp_path)
    assert found.matrix.by == "rank"
    each, all_ranks = 2 * TP_BYTES * STEPS / 8, 2 * DP_BYTES * STEPS / 16
    assert found.matrix.sent[0][1] == pytest.approx(each + all_ranks)
    assert found.matrix.sent[0][15] == pytest.approx(all_ranks)
    assert found.matrix.sent[3][3] == 0
    assert found.sent == pytest.approx(sum(map(sum, found.matrix.sent)))
    assert found.seconds == pytest.approx(STEPS - 1)


def test_more_ranks_are_put_together_by_node_and_the_slow_group_is_named(tmp_path: Path) -> None:
    write_dumps(tmp_path, 128, slow_group=3)
    found = read_communication(tmp_path, nodes=_NODES)
    assert (found.matrix.by, found.matrix.labels[3], len(found.matrix.labels)) == ("node", "nid003", 16)
    all_ranks = 2 * DP_BYTES * STEPS / 128
    assert found.matrix.sent[0][1] == pytest.approx(64 * all_ranks)
    assert found.across is not None
    assert found.across == pytest.approx(15 * 64 * all_ranks / sum(found.matrix.sent[0]))
    assert found.lines[0] == (
        "Ranks 24-31: all_reduce of 4.19 MB in tp takes 2.0 times as long as in the other groups of that "
        "name."
    )
    slow, other = found.slowest
    # The member that came last waited least: 8 ms of 8.00 to 8.04, and the factor 2 (n - 1) / n.
    assert (slow.label, slow.median_us, slow.calls) == ("default_pg", pytest.approx(8000), STEPS)
    assert slow.busbw == pytest.approx(DP_BYTES / 8e-3 * 2 * 127 / 128)
    assert (other.slowest, other.factor) == ("ranks 24-31", pytest.approx(2))
    assert [(each.label, each.groups, each.size) for each in found.groups] == [
        ("default_pg", 1, 128),
        ("tp", 16, 8),
    ]


def test_without_nodes_many_ranks_are_put_together_in_blocks(tmp_path: Path) -> None:
    write_dumps(tmp_path, 72)
    found = read_communication(tmp_path)
    assert (found.matrix.by, len(found.matrix.labels), found.matrix.labels[0]) == ("block", 36, "ranks 0-1")
    assert found.across is None


def test_sends_are_counted_once_and_receives_where_the_sender_has_no_dump(tmp_path: Path) -> None:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    calls = {0: ["send 0->1", "recv 0<-2"], 1: ["recv 1<-0"]}
    for rank, names in calls.items():
        entries = [
            entry(1, "0", name, 4000, 1.0, p2p_seq_id=1 + number, is_p2p=True)
            for number, name in enumerate(names)
        ]
        content = {"pg_config": groups, "entries": entries}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    found = read_communication(tmp_path)
    assert found.matrix.sent == ((0, 4000, 0), (0, 0, 0), (4000, 0, 0))
    assert [(each.kind, each.members, each.calls, each.busbw) for each in found.slowest] == [
        ("send", 2, 2, pytest.approx(4e6))
    ]


def test_files_of_nccl_inspector_and_answers_of_ras_are_read(tmp_path: Path) -> None:
    write_inspector(tmp_path / "nccl-inspector-48812")
    (tmp_path / "nccl-ras.json").write_text(json.dumps(ras_answer()))
    found = read_communication(tmp_path)
    assert found.sources == ("8 files of NCCL Inspector", "NCCL's RAS")
    (row,) = found.slowest
    assert (row.kind, row.size, row.calls, row.median_us) == ("all_reduce", 1 << 30, 10, 8300)
    assert row.busbw == pytest.approx((1 << 30) / 8.3e-3 * 2 * 7 / 8)
    assert found.matrix.sent[0][7] == pytest.approx(10 * 2 * (1 << 30) / 8)
    by_size = {(each.source, each.size): each for each in found.groups}
    assert by_size["NCCL RAS", 4].calls == {"all_reduce": 50}
    # RAS numbers the ranks of a communicator; processes tell which ranks of the job they are.
    assert by_size["NCCL RAS", 2].ranks == "ranks 2-3"


def test_hostile_files_give_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dumps(tmp_path, 8)
    inspector = tmp_path / "nccl-inspector-1"
    inspector.mkdir()
    (inspector / "deep.log").write_text('{"header": {}, "coll_perf": ' + "[" * 200_000)
    (inspector / "cut.log").write_text('{"header": {"rank": 1}, "coll_perf"')
    (inspector / "odd.log").write_text('{"header": 1, "metadata": [], "coll_perf": {}}\n{"coll": NaN}')
    os.mkfifo(inspector / "pipe.log")
    (inspector / "link.log").symlink_to("/dev/zero")
    (tmp_path / "nccl-ras.json").write_text(
        '{"communicators": [1, {"ranks": [{"rank": 1e99}], "hash": []}, {}]}'
    )
    (tmp_path / "ras-2.json").write_text('{"communicators": 3}')
    huge = {
        "pg_config": {},
        "entries": [entry(1, "0", "<b>x</b>\x1b[2J", 4, 1.0, input_sizes=[[1 << 61] * 9])],
    }
    (tmp_path / "rank_9").write_bytes(pickle.dumps(huge, protocol=2))
    with (tmp_path / "rank_10").open("wb") as file:
        file.truncate(1 << 33)
    assert main(["communication", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "can't be read: rank_10: it is larger than 64 MiB" in printed
    assert "can't be read: ras-2.json: it has no communicators of NCCL RAS" in printed
    assert "can't be read: odd.log: it has no collective of NCCL Inspector" in printed
    assert "deep.log" in printed


def test_dumps_of_several_jobs_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dumps(tmp_path, 8)
    write_dumps(tmp_path / "other", 16)
    (tmp_path / "other" / "rank_15").rename(tmp_path / "rank_15")
    assert main(["communication", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has dumps of several jobs" in line
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(GipfelError, match="holds no recorded communication"):
        read_communication(empty)
