"""Verdicts on real gloo jobs, a reduced sample of ``make campaign NAME=jobs``."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs import Job, JobPlan
from one_machine import OneMachine

pytestmark = pytest.mark.cluster


def test_a_rank_short_of_cpu_and_one_that_sleeps_are_named_and_nobody_else(
    cluster: OneMachine, world_folder: Path
) -> None:
    plans = [
        JobPlan("half_cpu", {"dp": 4}, 2, rank=3, onset=8, launcher="torchrun", seed=1, steps=34),
        JobPlan("asleep", {"dp": 2, "pp": 2}, 2, rank=1, onset=4, launcher="srun", seed=2),
    ]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda plan: Job(cluster, world_folder / plan.fault, plan).run(), plans))
    assert [each["judged"] for each in found] == ["right", "right"], found
    (slow,) = found[0]["said"]["verdicts"]
    assert (slow["kind"], slow["ranks"]) == ("slow_rank", [3])
    # Its CPU was halved, and so its work takes twice as long.
    assert found[0]["work_s"][3] > 1.4 * found[0]["work_s"][0]
    assert "wait_for_a_lock_that_nobody_opens" in found[1]["said"]["hang"]["message"]
