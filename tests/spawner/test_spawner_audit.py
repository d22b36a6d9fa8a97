"""The audit log: whole lines, readable only by its owner, and the GPU hours that culling saved."""

import json
import logging
import stat
import threading
from pathlib import Path

import pytest

from gipfel_spawner.history import AuditEvent, AuditLog

LOG = logging.getLogger("audit-test")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_what_happened_and_the_file_is_its_owners(tmp_path):
    path = tmp_path / "audit.jsonl"
    AuditLog(path, LOG).write(AuditEvent(event="start", user="ada", job_id="7", nodes=("n1",), gpus=4))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (line,) = lines(path)
    assert (line["event"], line["user"], line["job_id"], line["gpus"]) == ("start", "ada", "7", 4)
    assert str(line["time"]).endswith("+00:00")


def test_a_reason_with_line_breaks_is_one_short_line(tmp_path):
    path = tmp_path / "audit.jsonl"
    reason = 'a\nb\u2028c"' + "x" * 10_000 + "\ud800"
    AuditLog(path, LOG).write(AuditEvent(event="failure", user="ada", reason=reason))
    (line,) = lines(path)
    assert str(line["reason"]).startswith('a b c"xx')
    assert len(path.read_bytes()) < 1500


def test_writers_at_once_leave_whole_lines(tmp_path):
    path = tmp_path / "audit.jsonl"

    def write(name: str) -> None:
        log = AuditLog(path, LOG)
        for number in range(200):
            log.write(AuditEvent(event="start", user=name, job_id=str(number)))

    threads = [threading.Thread(target=write, args=(f"user{each}",)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    seen = {(line["user"], line["job_id"]) for line in lines(path)}
    assert len(seen) == len(lines(path)) == 800


def test_a_rotated_file_is_made_anew(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, LOG)
    log.write(AuditEvent(event="cull", user="ada", gpu_hours_saved=2.0))
    assert log.saved_gpu_hours() == 2.0
    path.rename(tmp_path / "audit.jsonl.1")
    log.write(AuditEvent(event="cull", user="ben", gpu_hours_saved=0.5))
    assert [line["user"] for line in lines(path)] == ["ben"]
    assert log.saved_gpu_hours() == 0.5


def test_saved_hours_are_those_of_culls_and_survive_a_bad_line(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, LOG)
    assert log.saved_gpu_hours() == 0.0
    log.write(AuditEvent(event="cull", user="ada", gpu_hours_saved=1.25))
    log.write(AuditEvent(event="stop", user='"cull"', gpu_hours_saved=100.0))
    with path.open("a") as file:
        file.write('{"event": "cull", "gpu_hours_saved": "much"}\nnot json "cull"\n{"event": "cull", "gpu')
    assert log.saved_gpu_hours() == 1.25
    with path.open("a") as file:
        file.write('_hours_saved": 3}\n')
    assert log.saved_gpu_hours() == 4.25
    assert AuditLog(path, LOG).saved_gpu_hours() == 4.25


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    AuditLog(tmp_path / "missing" / "audit.jsonl", LOG).write(AuditEvent(event="stop", user="ada"))
    assert "can't be written" in caplog.text
    target = tmp_path / "elsewhere"
    link = tmp_path / "link"
    link.symlink_to(target)
    AuditLog(link, LOG).write(AuditEvent(event="stop", user="ada"))
    assert not target.exists()


@pytest.mark.parametrize("more", [{"token": "x"}, {"environment": {}}])
def test_nothing_else_can_be_written(more):
    with pytest.raises(ValueError, match="extra"):
        AuditEvent(event="start", user="ada", **more)
