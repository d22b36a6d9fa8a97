"""The hub's session history: what is stored, summed up, bounded, and survives a damaged file."""

import logging
import stat
from pathlib import Path

import pytest

from gipfel_spawner import history as module
from gipfel_spawner.form.options import UserOptions
from gipfel_spawner.handlers.home import free_name
from gipfel_spawner.handlers.saturation import SharedSaturation
from gipfel_spawner.handlers.session_cards import spark_points
from gipfel_spawner.history import SessionHistory

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
def history(tmp_path: Path, clock: Clock) -> SessionHistory:
    return SessionHistory(tmp_path / "state/sessions.sqlite", _LOG, clock=clock)


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
    (session,) = SessionHistory(history.path, _LOG).last("ada", 10)
    assert session.options == UserOptions(edf="torch", gpus=4, nodes=2, time="2:00:00")
    assert (session.gpus, session.seconds, session.how) == (8, 3600.0, "culled")
    assert session.reason == "idle for 60 min"
    assert history.gpu_hours("ada", 0, clusters=["alps"]) == pytest.approx(8.0)
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600


def test_a_user_reads_only_their_own_sessions(history: SessionHistory) -> None:
    begin(history, "ada", "7")
    (session,) = history.last("ada", 10)
    assert history.get("ada", session.id) == session
    assert history.get("bob", session.id) is None
    assert history.last("bob", 10) == ()


def test_a_running_session_counts_until_now_and_is_not_an_earlier_one(
    history: SessionHistory, clock: Clock
) -> None:
    begin(history, "ada", "7", gpus=2)
    history.on_running("ada", "", "7")
    clock.now += 1800
    assert history.gpu_hours("ada", 0, clusters=["alps"], running=("7",)) == pytest.approx(1.0)
    assert history.last("ada", 10, running=("7",)) == ()
    # The hub did not see the end of this job: its hours are unknown and not guessed.
    assert history.gpu_hours("ada", 0, clusters=["alps"]) == 0
    assert history.last("ada", 10)[0].how is None


def test_only_the_hours_within_the_period_count(history: SessionHistory, clock: Clock) -> None:
    begin(history, "ada", "7", gpus=1)
    history.on_running("ada", "", "7")
    clock.now += 2 * _DAY_S
    history.end("ada", "", "7", "ended")
    clock.now += 29 * _DAY_S
    since = clock.now - 30 * _DAY_S
    assert history.gpu_hours("ada", since, clusters=["alps"]) == pytest.approx(24.0)
    assert history.gpu_hours("ada", since, clusters=["eiger"]) == 0


def test_a_job_id_that_is_used_again_is_another_session(history: SessionHistory, clock: Clock) -> None:
    for _ in range(2):
        begin(history, "ada", "7", gpus=1)
        history.on_running("ada", "", "7")
        clock.now += 3600
        history.end("ada", "", "7", "ended")
    assert [each.seconds for each in history.last("ada", 10)] == [3600.0, 3600.0]


def test_old_sessions_are_deleted_for_each_user(
    history: SessionHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    begin(history, "bob", "1")
    for number in range(5):
        begin(history, "ada", str(number))
    assert [each.job_id for each in history.last("ada", 10)] == ["4", "3", "2"]
    assert len(history.last("bob", 10)) == 1


def test_a_damaged_file_fails_no_start_and_shows_nothing(
    history: SessionHistory, caplog: pytest.LogCaptureFixture
) -> None:
    history.path.parent.mkdir()
    history.path.write_bytes(b"not a database" * 100)
    begin(history, "ada", "7")
    assert history.last("ada", 10) == ()
    assert history.gpu_hours("ada", 0, clusters=["alps"]) == 0
    assert "can't be written" in caplog.text


def test_a_link_in_place_of_the_file_is_not_followed(history: SessionHistory, tmp_path: Path) -> None:
    history.path.parent.mkdir()
    history.path.symlink_to(tmp_path / "elsewhere")
    begin(history, "ada", "7")
    assert not (tmp_path / "elsewhere").exists()


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


def test_a_sparkline_leaves_gaps_out() -> None:
    assert spark_points([0.0, None, 1.0]) == "0.0,27.0 120.0,1.0"
    assert spark_points([0.5]) == spark_points([None, None]) == ""


@pytest.mark.parametrize("activity", [[2.0], [float("nan")], ["x"], [0.5] * 61])
def test_activity_that_a_server_invents_is_refused(activity: list[object]) -> None:
    with pytest.raises(ValueError, match="activity"):
        SharedSaturation.model_validate({"shared": True, "activity": activity})
