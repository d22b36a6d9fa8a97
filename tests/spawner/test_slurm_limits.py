"""Limits of accounts and QoS that keep jobs waiting for ever, and waits of earlier jobs."""

import asyncio
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler import LocalScheduler
from gipfel_cluster.scheduler.machine import CommandResult
from gipfel_cluster.scheduler.protocol import (
    Association,
    Choices,
    GpuBudget,
    GpuUsage,
    JobRequest,
    Partition,
    Quota,
    Waits,
)
from gipfel_cluster.scheduler.slurm_limits import RequestedJob, Share, exceeded, limit_text, parse_limits
from gipfel_cluster.scheduler.slurm_site import SlurmSite
from gipfel_cluster.scheduler.slurm_usage import parse_shares, parse_spent, parse_waits
from gipfel_cluster.workloads import quota
from gipfel_extension.training.preflight import Context
from gipfel_extension.training.preflight.checks import check_job_limits
from gipfel_spawner.cluster.cache import ClusterCache
from gipfel_spawner.form.options import OptionError, UserOptions
from gipfel_spawner.form.validation import check_limits

# Slurm 22.05.8: physics below lab, limits of user, lab and QoS short. Jobs that exceed them were submitted to
# the same cluster, and stayed pending with the reasons below.
_OUTPUT = (
    Path(__file__).parent / "data/slurm/assoc_mgr-22.05-limits-of-user-account-above-and-qos.txt"
).read_text()
LIMITS = parse_limits(_OUTPUT, "nobody")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"qos": "short", "gpus": 1, "minutes": 120}, "QOSMaxWallDurationPerJobLimit"),
        ({"qos": "normal", "gpus": 4, "minutes": 10}, "AssocGrpGRES"),
        ({"qos": "normal", "minutes": 780}, "AssocMaxWallDurationPerJobLimit"),
        ({"qos": "short", "gpus": 3, "minutes": 10}, "QOSMaxGRESPerJob"),
    ],
)
def test_jobs_that_slurm_holds_for_ever_are_recognized(job, reason):
    found = exceeded(RequestedJob(account="physics", **job), LIMITS)
    names = {
        "QOSMaxWallDurationPerJobLimit": ("QoS short", "MaxWall=30"),
        "AssocGrpGRES": ("account lab", "GrpTRES=gres/gpu=3"),
        "AssocMaxWallDurationPerJobLimit": ("nobody in account physics", "MaxWall=720"),
        "QOSMaxGRESPerJob": ("QoS short", "MaxTRESPJ=gres/gpu=2"),
    }
    assert names[reason] in [(each.holder, each.name) for each in found]


def test_a_job_within_all_limits_is_not_held():
    assert exceeded(RequestedJob(account="physics", qos="short", gpus=2, minutes=30), LIMITS) == ()
    assert exceeded(RequestedJob(account="elsewhere", qos="long", gpus=99), LIMITS) == ()


def test_used_up_gpu_hours_hold_jobs_with_gpus_alone():
    used = parse_limits(_OUTPUT.replace("gres/gpu=90(0)", "gres/gpu=90(90)"), "nobody")
    job = RequestedJob(account="physics", qos="normal", minutes=10)
    assert exceeded(job, used) == ()
    assert [each.name for each in exceeded(job.model_copy(update={"gpus": 1}), used)] == [
        "GrpTRESMins=gres/gpu=90"
    ]


def test_limits_are_listed_with_what_is_left():
    lines = [limit_text(each) for each in LIMITS]
    assert "nobody in account physics: 1.5 GPU hours, 1.5 left" in lines
    assert "nobody in account physics: 12 h per job" in lines
    assert "account lab: 3 GPUs at once, 0 in use" in lines
    assert "QoS short: 2 GPUs per job" in lines
    assert "QoS short: 30 min per job" in lines


def test_a_qos_limits_each_user_where_the_controller_lists_the_user():
    line = "QOS=q(3) GrpJobs=N(0) MaxWallPJ= Account Limits=No Accounts User Limits= "
    line += "1001={MaxJobsPU=2(1) MaxTRESPU=cpu=N(0),gres/gpu=4(1)} bob(7)={MaxJobsPU=9(0)}"
    found = {(each.name, each.limit, each.used) for each in parse_limits(line, "ada")}
    assert found == {("MaxJobsPU=2", 2, 1), ("MaxTRESPU=gres/gpu=4", 4, 1)}


@given(st.text(max_size=300))
def test_any_text_is_parsed(text):
    for prefix in ("", "ClusterName=x ", "QOS=y "):
        parse_limits(prefix + text, "ada")


def test_accounts_above_each_other_in_a_circle_end():
    lines = [
        f"ClusterName=c Account={a} UserName= ParentAccount={b}(1) GrpJobs=1(0)" for a, b in ("ab", "ba")
    ]
    lines.append("ClusterName=c Account=a UserName=ada(7)")
    assert parse_limits("\n".join(lines), "ada")


def _choices() -> Choices:
    own = Association(account="physics", qos=("normal", "short"), default_qos="normal")
    return Choices(associations=(own,), default_account="physics", limits=LIMITS)


def test_the_form_refuses_them_with_the_name_of_the_limit_at_its_field():
    with pytest.raises(OptionError, match=r"account lab allows 3 GPUs \(GrpTRES=gres/gpu=3\), 4") as refused:
        check_limits(UserOptions(gpus=2, nodes=2), _choices(), None)
    assert refused.value.field == "gpus"
    with pytest.raises(OptionError, match="30 min per job") as refused:
        check_limits(UserOptions(qos="short", time="2h"), _choices(), None)
    assert refused.value.field == "time"
    check_limits(UserOptions(gpus=2, time="2h"), _choices(), None)
    check_limits(UserOptions(gpus=64), None, None)


class _Slurm:
    """Slurm with the limits above, and 60 earlier jobs of one GPU."""

    name = "slurm"

    async def quota(self, user: str) -> Quota:
        waits = Waits(partition="normal", gpus="1", jobs=60, half_s=240.0, most_s=7200.0)
        return Quota(choices=_choices(), waits=(waits,))

    async def partitions(self) -> tuple[Partition, ...]:
        return (Partition(name="normal", default=True, time_limit_s=86400),)

    async def choices(self, user: str) -> Choices:
        return _choices()

    async def expected_start(self, request: JobRequest) -> str:
        return "2099-11-21T17:11:00"


def _request(**changes: object) -> JobRequest:
    return JobRequest.model_validate({"name": "x", "script": "#!/bin/sh\n", "directory": "/", **changes})


class _Submission:
    def scheduler(self, name: str) -> _Slurm:
        return _Slurm()


def _preflight(**changes: object) -> tuple[str, str]:
    plan = SimpleNamespace(request=_request(**changes), scheduler="slurm")
    context = Context(plan, Path(), _Submission(), {}, None)  # type: ignore[arg-type]
    outcome = check_job_limits(context)
    assert outcome is not None
    return outcome.verdict, outcome.message


def test_launches_and_batch_notebooks_are_refused_as_in_the_form_and_know_earlier_waits():
    verdict, message = _preflight(gpus_per_node=4)
    assert (verdict, "account lab allows 3 GPUs (GrpTRES=gres/gpu=3)" in message) == ("fail", True)
    verdict, message = _preflight(time="25:00:00")
    assert (verdict, "MaxWall=720" in message) == ("fail", True)
    verdict, message = _preflight(gpus_per_node=1)
    assert verdict == "pass"
    assert message == (
        "Of your jobs like this on normal, half started within 4 min, 95 % within 2.0 h (from 60 jobs)."
    )
    with pytest.raises(GipfelError, match="account lab allows 3 GPUs"):
        asyncio.run(quota.check_limits(_Slurm(), _request(gpus_per_node=4), {}))  # type: ignore[arg-type]


class _Accounting(_Slurm):
    """The same with GPU hours, energy and a share."""

    async def quota(self, user: str) -> Quota:
        budgets = (GpuBudget(account="physics", limit=1000, remaining=998.25),)
        others = (GpuBudget(account="course", limit=1, remaining=1),)
        shares = (Share(account="physics", share=0.25, used=0.125, factor=0.7),)
        usage = GpuUsage(used=12.04, energy_kwh=3.4, budgets=budgets + others, shares=shares)
        return Quota(choices=_choices(), usage=usage)


def test_what_a_job_starts_with_is_reported_at_each_start(tmp_path):
    standing = (
        "Used this month: 12.0 GPU hours, 3.4 kWh. 998.2 of 1000 GPU hours left in account physics. "
        "Share of the cluster, physics: 25.0 %, used 12.5 % recently, priority 0.70 of 1."
    )
    environment = {"GIPFEL_RUNS": str(tmp_path)}
    assert asyncio.run(quota.check_limits(_Accounting(), _request(), environment)) == standing  # type: ignore[arg-type]
    # Where Slurm measures no energy, it is that of the recorded runs; also without Slurm.
    run = tmp_path / "alps-1"
    run.mkdir()
    (run / "record.json").write_text(json.dumps({"started": datetime.now(UTC).isoformat()}))
    (run / "score.json").write_text('{"energy": {"total_wh": 1500}}')
    recorded = "Energy this month: 1.5 kWh, measured in 1 run."
    assert asyncio.run(quota.check_limits(_Accounting(), _request(), environment)) == standing  # type: ignore[arg-type]
    found = asyncio.run(quota.check_limits(_Slurm(), _request(gpus_per_node=2), environment))  # type: ignore[arg-type]
    assert found == recorded
    local = LocalScheduler(tmp_path / "jobs", environment={})
    assert asyncio.run(quota.check_limits(local, _request(), environment)) == recorded


def test_the_forms_forecast_has_the_waits_of_jobs_like_this_one_and_a_table_of_all():
    async def forecast(gpus: int):
        return await ClusterCache(_Slurm()).forecast(_request(gpus_per_node=gpus), "ada")

    found = asyncio.run(forecast(1))
    assert found.latest == "2099-11-21T17:11:00"
    assert found.similar == found.waits[0]
    assert asyncio.run(forecast(2)).similar is None


def test_gpu_hours_are_summed_by_account_and_service():
    rows = "lab|gres/gpu=2|1800|gipfel-mlflow\nlab|gres/gpu=1|3600|gipfel-mlflow\nlab|gres/gpu=1|7200|a|b\n"
    rows += "lab|gres/gpu=1|3600|gipfel-launch\nother||60|gipfel-board\nx|y\n"
    found = {(each.account, each.service): each.gpu_hours for each in parse_spent(rows)}
    assert found == {("lab", "mlflow"): 2.0, ("lab", ""): 3.0, ("other", "board"): 0.0}


def test_shares_are_those_of_the_user():
    rows = "root||1.000000|0.5|\n lab||0.5|0.2|0.5\n  lab|ada|0.25|0.1|0.75\n  lab|bob|0.25|0.1|x\n"
    (share,) = parse_shares(rows, "ada")
    assert (share.account, share.share, share.used, share.factor) == ("lab", 0.25, 0.1, 0.75)
    assert parse_shares(rows, "bob") == ()


def test_a_site_that_refuses_the_query_has_no_limits():
    asked: list[Sequence[str]] = []

    async def run(argv: Sequence[str], **_: object) -> CommandResult:
        asked.append(argv)
        if "assoc_mgr" in argv:
            raise GipfelError("Access denied.")
        output = "physics|physics||normal,short|normal\n" if argv[0] == "sacctmgr" else ""
        return CommandResult(code=0, output=output, errors="")

    found = asyncio.run(SlurmSite(run).choices("ada"))
    assert (found.accounts, found.limits) == (("physics",), ())
    # With "qos=" in it, this query ends the controller of Slurm 22.05 if it has no QoS cached.
    assert asked[-1][-2:] == ("flags=assoc,qos", "users=ada")


def _sacct(waits: Sequence[float], gpus: int = 1) -> str:
    begun = datetime(2026, 11, 1, tzinfo=UTC)
    rows = ((begun, begun + timedelta(seconds=each)) for each in waits)
    return "".join(f"normal|cpu=1,gres/gpu={gpus}|{a.isoformat()}|{b.isoformat()}\n" for a, b in rows)


def test_waits_are_a_median_and_a_bound_where_there_are_enough_jobs():
    few, many = parse_waits(_sacct(range(58)))[0], parse_waits(_sacct(range(59)))[0]
    assert (few.jobs, few.half_s, few.most_s) == (58, 28.0, None)
    assert (many.jobs, many.gpus, many.most_s) == (59, "1", 58.0)


def test_the_bound_holds_in_19_of_20_histories():
    # Exponential waits: the 95th percentile is 3 means. Of 2 000 histories, at most 5 % plus 4 standard
    # errors of their bounds may be below it.
    draw = random.Random(4)
    below = 0
    for _ in range(2000):
        seconds = [draw.expovariate(1 / 600) for _ in range(120)]
        bound = parse_waits(_sacct([round(each) for each in seconds]))[0].most_s
        assert bound is not None
        below += bound < 600 * 2.9957 - 1
    assert below <= 2000 * 0.05 + 4 * (2000 * 0.05 * 0.95) ** 0.5


def test_jobs_that_have_not_started_are_left_out():
    rows = "normal|cpu=1|2026-11-01T00:00:00|Unknown\nnormal|cpu=1|Unknown|Unknown\nx\n"
    assert parse_waits(rows) == ()
