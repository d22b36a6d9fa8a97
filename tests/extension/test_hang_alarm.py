"""When a job that makes no progress hangs: one alarm, none in phases that take their time."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from alarms import cells
from hypothesis import given, settings
from hypothesis import strategies as st

from gipfel_extension.training.launches.hang_watch import HangAlarm, HangLimits, RankProgress
from gipfel_extension.training.rank_writes import WriteWatch

_LOOK_S = 10.0


def _course(
    parts: Sequence[tuple[float, str, float]],
    *,
    ranks: int = 4,
    limits: HangLimits | None = None,
    busy: float = 0.0,
) -> list[tuple[float, str]]:
    """Observe parts of (seconds, phase or "steps", seconds per step); return times and events."""
    alarm = HangAlarm(0.0, limits or HangLimits())
    now, steps, events = 0.0, 0.0, []
    for seconds, what, pace in parts:
        end = now + seconds
        while now < end:
            now += _LOOK_S
            steps += _LOOK_S / pace if what == "steps" else 0.0
            phase = "" if what in ("steps", "hang") else what
            reports = {rank: RankProgress(int(steps), phase, busy) for rank in range(ranks)}
            alarm = alarm.observe(now, reports)
            if alarm.event:
                events.append((now, alarm.event))
    return events


def test_a_hang_is_one_alarm_after_five_minutes_and_steps_that_resume_close_it() -> None:
    assert _course([(600, "steps", 2), (3600, "hang", 0)]) == [(900.0, "alarm")]
    resumed = [(600, "steps", 2.0), (400, "hang", 0.0), (100, "steps", 2.0)]
    assert _course(resumed) == [(900.0, "alarm"), (1010.0, "resumed")]
    # The pause of 410 s teaches the next limit of 2 050 s.
    assert _course([*resumed, (2000, "hang", 0), (100, "steps", 2)]) == [
        (900.0, "alarm"),
        (1010.0, "resumed"),
    ]
    assert _course([*resumed, (2100, "hang", 0)])[2:] == [(3150.0, "alarm")]


def test_start_up_checkpoints_evaluations_and_long_steps_take_their_time() -> None:
    assert _course([(1700, "hang", 0), (600, "steps", 2)]) == []
    assert _course([(1900, "hang", 0)]) == [(1800.0, "alarm")]
    for phase in ("checkpoint", "evaluation"):
        assert _course([(600, "steps", 2), (1700, phase, 0), (600, "steps", 2), (290, "hang", 0)]) == []
        # A checkpoint of 1 700 s does not make the limit between steps longer.
        assert _course([(600, "steps", 2), (1700, phase, 0), (600, "steps", 2), (400, "hang", 0)]) == [
            (3200.0, "alarm")
        ]
        assert _course([(600, "steps", 2), (2000, phase, 0)]) == [(2410.0, "alarm")]
    assert _course([(4000, "steps", 200)]) == []
    assert _course([(4000, "steps", 200), (990, "hang", 0)]) == []
    # Ranks that compute on CPUs: most of them are busy.
    assert _course([(600, "steps", 2), (5000, "hang", 0)], busy=0.9) == []


def test_work_of_gpus_is_progress_and_a_busy_core_beside_them_is_none() -> None:
    for active, events in ((True, 0), (False, 1)):
        alarm, seen = HangAlarm(0.0), 0
        for number in range(1, 200):
            reports = {0: RankProgress(min(number, 10), busy=1.0), 1: RankProgress(min(number, 10), busy=1.0)}
            alarm = alarm.observe(10.0 * number, reports, on_gpus=True, gpus_active=active)
            seen += alarm.event == "alarm"
        assert seen == events


def test_writes_of_a_checkpoint_with_an_unknown_name_are_progress_also_on_gpus() -> None:
    for until, events in ((2000.0, [2300.0]), (100.0, [400.0])):
        alarm, alarms = HangAlarm(0.0), []
        for now in (10.0 * number for number in range(1, 260)):
            reports = {0: RankProgress(min(int(now), 60), busy=1.0)}
            alarm = alarm.observe(now, reports, on_gpus=True, writes=100 <= now <= until)
            alarms += [now] if alarm.event == "alarm" else []
        assert alarms == events


def test_a_program_that_writes_more_than_a_log_touches_its_file(tmp_path: Path) -> None:
    watch = WriteWatch(str(tmp_path), 3, world=4, hang_after_s=1e-6)
    code = (
        "import sys\nfor n in sys.stdin:\n open(sys.argv[1], 'wb').write(bytes(int(n)))\n print(flush=True)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "checkpoint")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin
        assert program.stdout
        watch.look(program.pid)
        for size, touched in ((1000, False), (3 << 20, True)):
            program.stdin.write(f"{size}\n")
            program.stdin.flush()
            program.stdout.readline()
            time.sleep(0.001)
            watch.look(program.pid)
            assert (tmp_path / "writing" / "3").exists() == touched
        program.stdin.close()
    watch.look(program.pid)


_PARTS = st.lists(
    st.tuples(
        st.sampled_from([50.0, 250.0, 900.0, 4000.0]),
        st.sampled_from(["steps", "checkpoint", "evaluation", "hang"]),
        st.sampled_from([0.5, 5.0, 60.0]),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(_PARTS)
def test_alarms_and_ends_take_turns_and_none_is_early(parts: list[tuple[float, str, float]]) -> None:
    events = _course(parts)
    assert [event for _, event in events] == ["alarm", "resumed"] * (len(events) // 2) + ["alarm"] * (
        len(events) % 2
    )
    end = 0.0
    for seconds, what, _ in parts:
        begin, end = end, end + seconds
        if what == "steps":
            assert not [time for time, event in events if event == "alarm" and begin + 300 < time <= end]
    assert all(time >= 300 for time, event in events if event == "alarm")


@settings(max_examples=12, deadline=None)
@given(_PARTS)
def test_ranks_that_stop_for_good_are_always_found(parts: list[tuple[float, str, float]]) -> None:
    longest = 5 * max([300.0, *(each[0] for each in parts)]) * max(1, len(parts))
    events = _course([*parts, (max(2 * 1800.0, longest) + 100, "hang", 1.0)])
    assert events
    assert events[-1][1] == "alarm"


@pytest.mark.parametrize(
    "cell",
    ["healthy.cpu", "healthy.unnamed", "healthy.unseen", "hang.asleep", "hang.start_up", "hang.checkpoint"],
)
def test_a_reduced_campaign_has_no_false_alarm_and_finds_all_hangs(cell: str) -> None:
    found = cells(11, 1)[cell]()
    assert found["false"] == 0
    if cell.startswith("hang"):
        assert found["in time"] == 1, found
    # Where no step was ever seen, the alarm says that it can't tell.
    assert bool(found["cannot tell"]) == (cell in ("healthy.unseen", "hang.start_up"))


def test_limits_scale_together() -> None:
    assert HangLimits().scaled(0.1) == HangLimits(30.0, 5.0, 180.0, 180.0)
    with pytest.raises(AttributeError):
        HangLimits().least_s = 1.0  # type: ignore[misc]
