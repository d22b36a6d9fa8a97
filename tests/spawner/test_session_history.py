"""The hub's session history: content, sums, limits, and damaged or locked files."""

import asyncio
import logging
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from jupyterhub.handlers.pages import SpawnHandler
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from gipfel_spawner import history as module
from gipfel_spawner import spawner as spawner_module
from gipfel_spawner.form.options import UserOptions
from gipfel_spawner.gpu_hours import GpuHours
from gipfel_spawner.handlers.form import ValidatedSpawnHandler
from gipfel_spawner.handlers.home import RepeatHandler, free_name, spark_points
from gipfel_spawner.handlers.usage import SharedSaturation
from gipfel_spawner.history import Session, SessionHistory
from gipfel_spawner.lifetime import ServerLifetime
from gipfel_spawner.spawner import EDFSpawner

_LOG = logging.getLogger("test")
_DAY_S = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(tmp_path: Path, clock: Clock) -> Iterator[SessionHistory]:
    history = SessionHistory(tmp_path / "state/sessions.sqlite", _LOG, clock=clock)
    yield history
    history.close()


def last(history: SessionHistory, user: str, *, running: tuple[str, ...] = ()) -> tuple[Session, ...]:
    return asyncio.run(history.last(user, 10, running=running))


def gpu_hours(
    history: SessionHistory, since: float = 0, *, cluster: str = "alps", running: tuple[str, ...] = ()
) -> float:
    return asyncio.run(history.gpu_hours("ada", since, clusters=[cluster], running=running))


def begin(history: SessionHistory, user: str, job_id: str, server: str = "", **options: object) -> None:
    chosen = UserOptions.model_validate(options)
    history.begin(user, server, cluster="alps", job_id=job_id, options=chosen)


def test_a_session_is_stored_with_its_options_and_its_end(history: SessionHistory, clock: Clock) -> None:
    begin(history, "ada", "7", "big", edf="torch", gpus=4, nodes=2, time="2:00:00")
    clock.now += 60
    history.on_running("ada", "big", "7")
    clock.now += 3600
    history.end("ada", "big", "7", "culled", "idle for\n60 min")
    history.end("ada", "big", "7", "ended", "a second end changes nothing")
    history.close()
    again = SessionHistory(history.path, _LOG)
    (session,) = last(again, "ada")
    assert session.options == UserOptions(edf="torch", gpus=4, nodes=2, time="2:00:00")
    assert (session.gpus, session.seconds, session.how) == (8, 3600.0, "culled")
    assert session.reason == "idle for 60 min"
    assert gpu_hours(again) == pytest.approx(8.0)
    again.close()
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600


def test_a_user_reads_only_their_own_sessions(history: SessionHistory) -> None:
    begin(history, "ada", "7")
    (session,) = last(history, "ada")
    assert asyncio.run(history.get("ada", session.id)) == session
    assert asyncio.run(history.get("bob", session.id)) is None
    assert last(history, "bob") == ()


def test_a_user_does_not_see_the_sessions_of_a_deleted_user_of_the_same_name(
    history: SessionHistory, clock: Clock
) -> None:
    begin(history, "ada", "7")
    (session,) = last(history, "ada")
    created = datetime.fromtimestamp(clock.now + 60, UTC).replace(tzinfo=None)
    user = SimpleNamespace(orm_user=SimpleNamespace(created=created))
    lifetime = ServerLifetime.__new__(ServerLifetime)
    lifetime._spawner = cast("EDFSpawner", SimpleNamespace(user=user))
    since = lifetime.user_created
    assert since == clock.now + 60
    assert asyncio.run(history.last("ada", 10, since=since)) == ()
    assert asyncio.run(history.get("ada", session.id, since=since)) is None
    clock.now += 120
    begin(history, "ada", "8")
    assert [each.job_id for each in asyncio.run(history.last("ada", 10, since=since))] == ["8"]


def test_a_running_session_counts_until_now_and_is_not_an_earlier_one(
    history: SessionHistory, clock: Clock
) -> None:
    begin(history, "ada", "7", gpus=2)
    history.on_running("ada", "", "7")
    clock.now += 1800
    assert gpu_hours(history, running=("7",)) == pytest.approx(1.0)
    assert last(history, "ada", running=("7",)) == ()
    # The hub did not see the end of this job: its hours are unknown and not guessed.
    assert gpu_hours(history) == 0
    assert last(history, "ada")[0].how is None


def test_only_the_hours_within_the_period_count(history: SessionHistory, clock: Clock) -> None:
    begin(history, "ada", "7", gpus=1)
    history.on_running("ada", "", "7")
    clock.now += 2 * _DAY_S
    history.end("ada", "", "7", "ended")
    clock.now += 29 * _DAY_S
    since = clock.now - 30 * _DAY_S
    assert gpu_hours(history, since) == pytest.approx(24.0)
    assert gpu_hours(history, since, cluster="eiger") == 0


def test_a_job_id_that_is_used_again_is_another_session(history: SessionHistory, clock: Clock) -> None:
    for _ in range(2):
        begin(history, "ada", "7", gpus=1)
        history.on_running("ada", "", "7")
        clock.now += 3600
        history.end("ada", "", "7", "ended")
    assert [each.seconds for each in last(history, "ada")] == [3600.0, 3600.0]


def test_old_sessions_are_deleted_for_each_user(
    history: SessionHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    begin(history, "bob", "1")
    for number in range(5):
        begin(history, "ada", str(number))
    assert [each.job_id for each in last(history, "ada")] == ["4", "3", "2"]
    assert len(last(history, "bob")) == 1


def test_a_damaged_file_fails_no_start_and_shows_nothing(
    history: SessionHistory, caplog: pytest.LogCaptureFixture
) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(b"not a database" * 100)
    begin(history, "ada", "7")
    assert last(history, "ada") == ()
    assert gpu_hours(history) == 0
    assert "can't be written" in caplog.text


def test_a_link_in_place_of_the_file_is_not_followed(history: SessionHistory, tmp_path: Path) -> None:
    history.path.parent.mkdir()
    history.path.symlink_to(tmp_path / "elsewhere")
    begin(history, "ada", "7")
    history.close()
    assert not (tmp_path / "elsewhere").exists()


def test_an_existing_file_becomes_the_owners_alone(history: SessionHistory) -> None:
    history.path.parent.mkdir()
    history.path.touch(0o644)
    begin(history, "ada", "7")
    assert len(last(history, "ada")) == 1
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600


def test_a_locked_file_does_not_stop_the_event_loop(
    history: SessionHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUSY_S", 20.0)
    monkeypatch.setattr(module, "_READ_S", 20.0)

    async def run() -> tuple[Session, ...]:
        history.on_running("ada", "", "7")
        reading = asyncio.ensure_future(history.last("ada", 10))
        await asyncio.sleep(0.2)
        assert not reading.done()
        # Whoever waits in the event loop never gets here.
        lock.rollback()
        return await reading

    begin(history, "ada", "7")
    assert len(last(history, "ada")) == 1
    lock = sqlite3.connect(history.path)
    lock.execute("BEGIN IMMEDIATE")
    (session,) = asyncio.run(run())
    lock.close()
    assert session.started is not None


def test_a_read_that_takes_too_long_shows_nothing(
    history: SessionHistory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_READ_S", 0.1)
    history._worker.submit(time.sleep, 0.5)
    begin(history, "ada", "7")
    assert last(history, "ada") == ()
    assert "not read within 0.1 s" in caplog.text
    time.sleep(0.6)
    assert len(last(history, "ada")) == 1


def test_a_hub_that_ends_writes_what_is_queued(history: SessionHistory) -> None:
    program = """if True:
        import logging, pathlib, sys, time
        from gipfel_spawner.form.options import UserOptions
        from gipfel_spawner.history import SessionHistory
        history = SessionHistory(pathlib.Path(sys.argv[1]), logging.getLogger())
        history._worker.submit(time.sleep, 0.3)
        for job in range(5):
            history.begin("ada", "", cluster="alps", job_id=str(job), options=UserOptions())
    """
    subprocess.run([sys.executable, "-c", program, str(history.path)], check=True, timeout=60)
    assert [each.job_id for each in last(history, "ada")] == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize(
    ("name", "active", "free"),
    [
        ("", set(), ""),
        ("", {""}, "session-2"),
        ("train", {""}, "train"),
        ("train", {"train", "train-2"}, "train-3"),
        ("a" * 30, {"a" * 30}, "a" * 26 + "-2"),
    ],
)
def test_a_repeated_session_gets_a_name_that_is_free(name: str, active: set[str], free: str) -> None:
    assert free_name(name, active) == free


def test_a_link_to_repeat_a_session_changes_nothing(history: SessionHistory) -> None:
    begin(history, "ada", "7", "train", edf="torch")
    (session,) = last(history, "ada")
    # A spawner without anything that could be changed, of a user without a method to create servers.
    spawner = EDFSpawner.__new__(EDFSpawner)
    spawner.lifetime = cast("ServerLifetime", SimpleNamespace(history=lambda: history, user_created=0.0))
    user = SimpleNamespace(name="ada", escaped_name="ada", spawner=spawner, spawners={})
    page = RepeatHandler.__new__(RepeatHandler)
    page._jupyterhub_user = user
    shown: list[str] = []
    page.redirect = shown.append
    page.application = SimpleNamespace(settings={"hub": SimpleNamespace(base_url="/hub/")})
    page.application.settings["allow_named_servers"] = True
    asyncio.run(RepeatHandler.get.__wrapped__(page, str(session.id)))
    assert shown == [f"/hub/spawn/ada/train?gipfel_repeat={session.id}"]


def test_the_form_shows_the_session_of_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_self: object) -> None:
        pass

    def prepared(query: str) -> tuple[int, dict[str, list[bytes]]]:
        start = RequestStartLine("GET", f"/hub/spawn/ada?{query}", "HTTP/1.1")
        headers = HTTPHeaders({"Host": "hub"})
        request = HTTPServerRequest(start_line=start, headers=headers, connection=Mock())
        page = ValidatedSpawnHandler.__new__(ValidatedSpawnHandler)
        page.request = request
        asyncio.run(page.prepare())
        return page.repeat, request.query_arguments

    monkeypatch.setattr(SpawnHandler, "prepare", nothing)
    # What is left are options of a start, with which JupyterHub would try to start the server.
    assert prepared("gipfel_repeat=12&next=x") == (12, {"next": [b"x"]})
    assert prepared("gipfel_repeat=12x") == (0, {})
    assert prepared("edf=torch") == (0, {"edf": [b"torch"]})


def test_a_repeated_session_fills_in_the_form_once(
    history: SessionHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(history, "ada", "7", edf="torch")
    (session,) = last(history, "ada")
    shown: list[UserOptions | None] = []

    async def render(earlier: UserOptions | None = None, *, gpu_hours: tuple[str, ...] = ()) -> str:
        assert gpu_hours == ("2 GPU hours used this month by your jobs",)
        shown.append(earlier)
        return ""

    async def hours(_spawner: object, *, running: Sequence[str]) -> GpuHours:
        assert running == []
        return GpuHours(text="2 GPU hours used this month by your jobs")

    monkeypatch.setattr(spawner_module, "month_gpu_hours", hours)
    for number in (session.id, 0, session.id + 1):
        spawner = SimpleNamespace(
            handler=SimpleNamespace(repeat=number),
            lifetime=SimpleNamespace(history=lambda: history, user_created=0.0),
            user=SimpleNamespace(name="ada", all_spawners=lambda: ()),
            options=SimpleNamespace(render=render),
        )
        asyncio.run(EDFSpawner.render_options_form(cast("EDFSpawner", spawner)))
    assert shown == [UserOptions(edf="torch"), None, None]


def test_a_sparkline_leaves_gaps_out() -> None:
    assert spark_points([0.0, None, 1.0]) == "0.0,27.0 120.0,1.0"
    assert spark_points([0.5]) == spark_points([None, None]) == ""


@pytest.mark.parametrize("activity", [[2.0], [float("nan")], ["x"], [0.5] * 61])
def test_activity_that_a_server_invents_is_refused(activity: list[object]) -> None:
    with pytest.raises(ValueError, match="activity"):
        SharedSaturation.model_validate({"shared": True, "activity": activity})
